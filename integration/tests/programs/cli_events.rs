//! Custom and typed events of a live process for a user: recorded, shown, and in every format that
//! holds them.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{DEADLINE, Fixture, Target, Tool, wait_until};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::scene::{Cli, Scene, all_on, ensure_as_compiled, rows};

/// Events of two threads in two rounds of twelve sizes, in two ways each, and of the five leaf
/// functions.
const CUSTOM: u64 = 2 * 2 * 12 * 2 + 4;
const TYPED: u64 = 2 * 2 * 12 * 2 + 1;
/// Events without data. Some formats cannot hold them.
const EMPTY: u64 = 2 * 2 * 2;

/// Records the program's events into `e.xtrace`.
fn record(cli: &Cli) -> Result<Target> {
    let mut target = Target::spawn(Fixture::Events, ["--threads", "2", "--rounds", "2"])?;
    let pid = target.pid().to_string();
    let mut running = cli.start(["record", &pid, "-o", "e.xtrace", "--force"])?;
    running.until("everything is on", || all_on(&target))?;
    ensure!(target.ask("go", "done ")? == "done 0");
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    ensure_as_compiled(&target)?;
    Ok(target)
}

#[test]
fn user_events_are_recorded_and_shown_with_and_without_a_daemon() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for cli in [scene.alone()?, scene.with(&daemon)?] {
        let _target = record(&cli)?;
        let info = cli.json(["info", "e.xtrace"])?;
        ensure!(
            info["events"]["custom_events"] == CUSTOM && info["events"]["typed_events"] == TYPED,
            "{info}"
        );
        // Each event is in the call of its function, with the function's name. Its data is whole,
        // or has its original size beside it.
        let report = cli.json(["tree", "e.xtrace", "--limit", "0"])?;
        let lines = rows(&report, "lines").or_else(|_| rows(&report["tree"], "lines"))?;
        let user_events: Vec<&Value> = lines
            .iter()
            .filter(|line| line["kind"] == "custom-event" || line["kind"] == "typed-event")
            .collect();
        ensure!(
            user_events.len() as u64 == CUSTOM + TYPED,
            "{} lines",
            user_events.len()
        );
        for line in &user_events {
            let function = line["function"].as_str().context("where was that?")?;
            let depth = u64::from(!function.starts_with("leaf_"));
            ensure!(line["depth"] == depth, "{line}");
        }
        let cut = user_events.iter().filter(|line| line["size"].is_u64());
        // The events of 4097 and of 9744 bytes.
        ensure!(cut.count() == 2 * 2 * 2 * 4);
        let text = cli.run(["tree", "e.xtrace", "--limit", "0"])?.out;
        ensure!(text.contains("(4096 of 9744 bytes)"), "{text}");
        fields_are_shown(&cli)?;
    }
    Ok(())
}

/// The fields in the data of `e.xtrace`: each byte is 13 more than the one before.
fn fields_are_shown(cli: &Cli) -> Result<()> {
    let formats = [
        "--event-format",
        "custom=first:u8,second:u8,more:bytes",
        "--event-format",
        "1005=first:i8,pad1,third:u8",
    ];
    let tree = [&["tree", "e.xtrace", "--limit", "0"], &formats[..]].concat();
    let shown = cli.json(&tree)?;
    let lines = rows(&shown["tree"], "lines")?;
    let (mut custom, mut typed) = (0, 0);
    for line in lines.iter().filter(|line| !line["fields"].is_null()) {
        let field = |name: &str| line["fields"][name].as_u64();
        if line["event_type"].is_null() {
            let (first, second) = (field("first"), field("second"));
            ensure!(
                second.is_none() || second == first.map(|first| (first + 13) % 256),
                "{line}"
            );
            custom += u64::from(second.is_some());
        } else {
            ensure!(line["event_type"] == 1005, "{line}");
            ensure!(
                (field("first"), field("third")) == (Some(7), Some(33)),
                "{line}"
            );
            typed += 1;
        }
    }
    ensure!(custom > CUSTOM / 2 && typed == 2 * 2, "{custom} {typed}");
    let text = cli.ok(tree)?;
    let line = "// event of type 1005: first=7 third=33 and ";
    ensure!(
        text.contains(line) && text.contains("first=77 second=90 more=0x67"),
        "{text}"
    );
    let refused = cli.run(["tree", "e.xtrace", "--event-format", "custom=a:u9"])?;
    let says_why = refused.err.contains("'u9' is not a kind of field");
    ensure!(refused.code == Some(2) && says_why, "{refused:?}");
    Ok(())
}

#[test]
fn every_format_that_has_events_has_those_of_a_live_process() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let _target = record(&cli)?;
    let convert = |file: &str| -> Result<String> {
        let ran = cli.run(["convert", "e.xtrace", "-o", file, "--force"])?;
        ensure!(ran.code == Some(0), "{file}: {ran:?}");
        Ok(ran.out + &ran.err)
    };

    convert("e.jsonl")?;
    let mut places = BTreeMap::<String, u64>::new();
    for line in fs::read_to_string(scene.path("e.jsonl"))?.lines() {
        let event: Value = serde_json::from_str(line)?;
        if event["event"] == "custom" || event["event"] == "typed" {
            let function = event["function"].as_str().context("where was that?")?;
            *places.entry(function.to_owned()).or_default() += 1;
        }
    }
    ensure!(places.values().sum::<u64>() == CUSTOM + TYPED, "{places:?}");
    ensure!(
        places["say"] == 48 && places["say_rotated"] == 48 && places["leaf_v0"] == 1,
        "{places:?}"
    );

    convert("e.json")?;
    let chrome: Value = serde_json::from_slice(&fs::read(scene.path("e.json"))?)?;
    let instants = rows(&chrome, "traceEvents")?
        .iter()
        .filter(|event| event["ph"] == "i")
        .count() as u64;
    ensure!(instants == CUSTOM + TYPED, "{instants}");

    convert("e.csv")?;
    let table = fs::read_to_string(scene.path("e.csv"))?;
    let count = |word: &str| table.lines().filter(|line| line.contains(word)).count() as u64;
    ensure!((count(",custom,"), count(",typed,")) == (CUSTOM, TYPED));

    for file in ["e.pftrace", "e.ctf"] {
        convert(file)?;
        ensure!(scene.path(file).exists(), "{file}");
    }

    // LLVM's own tool reads typed events, but drops empty ones.
    convert("e.fdr")?;
    let log = scene.path("e.fdr").to_string_lossy().into_owned();
    let dump = Tool::LlvmXray19.run(["fdr-dump", &log])?;
    let records = |word: &str| dump.matches(word).count() as u64;
    let (custom, typed) = (records("<Custom Event: "), records("<Typed Event: "));
    ensure!(
        custom + typed == CUSTOM + TYPED - 2 * EMPTY,
        "{custom} and {typed}"
    );
    // Without names: the tool cannot read the program's map, which has typed sleds.
    let yaml = Tool::LlvmXray19.run(["convert", "-f", "yaml", &log])?;
    let records = |word: &str| yaml.matches(word).count() as u64;
    ensure!(records("kind: custom-event") == custom && records("kind: typed-event") == typed);
    Ok(())
}

/// A recording has the names of both kinds of programs, and of types that are registered during the
/// recording.
#[test]
fn types_are_shown_by_their_names() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    for (cli, fixture) in [
        (scene.alone()?, Fixture::Types),
        (scene.with(&daemon)?, Fixture::TypesLlvm),
    ] {
        let mut target = Target::spawn(fixture, [""; 0])?;
        let pid = target.pid().to_string();
        let mut running = cli.start(["record", &pid, "-o", "t.xtrace", "--force"])?;
        running.until("everything is on", || all_on(&target))?;
        target.ask("say 7", "said 7")?;
        target.ask("more 60000", "said")?;
        running.signal(Signal::SIGINT)?;
        let ran = running.wait()?;
        ensure!(ran.code == Some(0), "{ran:?}");
        let tree = cli.run(["tree", "t.xtrace"])?.out;
        for line in [
            "// event of type type 6: type 6",
            "// event of type 60000: more",
        ] {
            ensure!(tree.contains(line), "{tree}");
        }
        let info = cli.json(["info", "t.xtrace"])?;
        let types = rows(&info, "event_types")?;
        let of = |number: u64| types.iter().find(|row| row["number"] == number);
        let (known, unknown) = (of(6).context("no type 6")?, of(60_000).context("no 60000")?);
        ensure!(known["name"] == "type 6" && known["events"] == 1, "{info}");
        ensure!(
            unknown["name"].is_null() && unknown["events"] == 1,
            "{info}"
        );
        ensure!(types.len() == 8, "{info}");
    }
    Ok(())
}

/// Libraries describe the data of their events. A recording has the descriptions, `watch` and
/// `trigger` ask the daemon for them.
#[test]
fn a_programs_own_descriptions_are_used() -> Result<()> {
    let scene = Scene::new()?;
    let daemon = scene.daemon()?;
    let cli = scene.with(&daemon)?;
    let mut target = Target::spawn(Fixture::Saying, [""; 0])?;
    let pid = target.pid().to_string();
    let by_field = ["--where", "event(type of linked).value == 14"];

    let mut running = cli.start(["record", &pid, "-o", "t.xtrace"])?;
    running.until("everything is on", || all_on(&target))?;
    target.ask("linked 3", "done")?;
    running.signal(Signal::SIGINT)?;
    let ran = running.wait()?;
    ensure!(ran.code == Some(0), "{ran:?}");
    let tree = cli.ok(["tree", "t.xtrace"])?;
    let described = "letter=\"l\" value=13 rest=0x1a2734414e5b";
    ensure!(tree.contains(described), "{tree}");
    // Of the libraries that describe custom events, only one is loaded.
    ensure!(tree.contains("event: linked=0x6c0d1a2734414e5b"), "{tree}");
    let of_one = cli.ok([&["tree", "t.xtrace"][..], &by_field].concat())?;
    ensure!(
        of_one.contains("value=14") && !of_one.contains("value=13"),
        "{of_one}"
    );
    // The user's own description counts.
    let own = cli.ok([
        "tree",
        "t.xtrace",
        "--event-format",
        "type of linked=all:bytes",
    ])?;
    ensure!(own.contains("all=0x6c0d1a2734414e5b"), "{own}");
    let info = cli.json(["info", "t.xtrace"])?;
    let formats = rows(&info, "event_formats")?.iter();
    let formats: Vec<_> = formats.filter_map(Value::as_str).collect();
    ensure!(
        formats
            == [
                "custom=linked:bytes",
                "type of linked=letter:str1,value:u8,rest:bytes"
            ],
        "{info}"
    );
    // A trace that was made of the trace has them, too.
    cli.ok(["convert", "t.xtrace", "--to", "xtrace", "-o", "u.xtrace"])?;
    ensure!(cli.ok(["tree", "u.xtrace"])?.contains(described));
    let rows_of = cli.ok(["convert", "t.xtrace", "--to", "jsonl", "-o", "-"])?;
    ensure!(
        rows_of.contains(r#""fields":{"letter":"l","value":13,"#),
        "{rows_of}"
    );

    let refused = cli.run(["watch", &pid, "--where", "event(type of linked).valu == 1"])?;
    ensure!(
        refused.code == Some(2) && refused.err.contains("did you mean value?"),
        "{refused:?}"
    );
    let mut watching = cli.start([&["watch", &pid, "--all"][..], &by_field].concat())?;
    watching.until("everything is on", || all_on(&target))?;
    let printing = watching.printing();
    watching.until("the event is shown", || {
        // The first events come before the daemon knows the name of their type.
        target.ask("linked 3", "done")?;
        let shown = fs::read_to_string(&printing)?;
        Ok(shown.contains("value=14").then_some(()))
    })?;
    watching.signal(Signal::SIGINT)?;
    let ran = watching.wait()?;
    ensure!(
        ran.code == Some(0) && !ran.out.contains("value=13"),
        "{ran:?}"
    );

    cli.ok(["attach", &pid])?;
    cli.ok(["enable", &pid, "--all"])?;
    let when = ["--when", "event(type of linked).value == 14"];
    let trigger = ["trigger", &pid, "--do", "exec true"];
    let mut trigger = cli.start([&trigger[..], &when].concat())?;
    let ended = wait_until(DEADLINE, "it fires", || {
        target.ask("linked 3", "done")?;
        trigger.has_ended()
    })?;
    ensure!(ended.success(), "{ended}: {}", trigger.answer()?);
    let wrong = ["--when", "event(type of linked).valu == 1"];
    let refused = cli.run([&["trigger", &pid, "--do", "exec true"][..], &wrong].concat())?;
    ensure!(
        refused.code == Some(2) && refused.err.contains("did you mean value?"),
        "{refused:?}"
    );
    Ok(())
}
