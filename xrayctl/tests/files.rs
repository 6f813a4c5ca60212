//! The inputs and outputs of commands: pipes, full disks, and interruptions.

#![expect(clippy::unwrap_used, reason = "a failed helper is a failed test")]

use std::fs::{self, File};
use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

mod common;

use common::{command, small_trace, xrayctl, xrayctl_in};

/// Every command that reads a trace or a log, with its options.
const READERS: &[&str] = &[
    "info",
    "account",
    "stack",
    "tree",
    "graph",
    "report",
    "convert --to csv",
];

/// The names in a directory.
fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names = names.collect::<Vec<_>>();
    names.sort();
    names
}

/// Runs a line of shell in a directory; `$XRAYCTL` is the program.
fn shell(dir: &Path, line: &str) -> Output {
    let mut shell = Command::new("bash");
    shell
        .args(["-c", line])
        .env("XRAYCTL", env!("CARGO_BIN_EXE_xrayctl"))
        .current_dir(dir)
        .stdin(Stdio::null());
    shell.output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

#[test]
fn input_may_come_through_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let trace = fs::read(small_trace(dir.path())).unwrap();
    for reader in READERS {
        let args = |file| reader.split(' ').chain([file]).collect::<Vec<_>>();
        let expected = xrayctl_in(dir.path(), args("small.xtrace"));
        assert_eq!(expected.code, 0, "{}", expected.err);
        let mut child = command(args("-"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdin.take().unwrap().write_all(&trace).unwrap();
        let through_pipe = child.wait_with_output().unwrap();
        let found = text(&through_pipe.stdout);
        // The graph and the notes contain the file's name.
        assert_eq!(found, expected.out.replace("small.xtrace", "-"), "{reader}");
        let from_file = command(args("-"))
            .stdin(File::open(dir.path().join("small.xtrace")).unwrap())
            .output()
            .unwrap();
        assert_eq!(text(&from_file.stdout), found, "{reader}");
        let substituted = shell(
            dir.path(),
            &format!("$XRAYCTL {reader} <(cat small.xtrace)"),
        );
        assert!(
            substituted.status.success(),
            "{}",
            text(&substituted.stderr)
        );
        assert_eq!(substituted.stdout.len() > 10, found.len() > 10, "{reader}");
    }
}

#[test]
fn exports_are_inputs_of_every_command() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let run = |args: &[&str]| {
        let ran = xrayctl_in(dir.path(), args);
        assert_eq!(ran.code, 0, "{args:?}: {}", ran.err);
        ran.out
    };
    for (format, file) in [("jsonl", "a.jsonl"), ("csv", "a.csv"), ("chrome", "a.json")] {
        run(&["convert", "small.xtrace", "-o", file]);
        let info: serde_json::Value =
            serde_json::from_str(&run(&["info", "--json", file])).unwrap();
        assert_eq!(info["format"], format);
        assert_eq!(info["trace"]["processes"][0]["pid"], 4711, "{info}");
        for reader in READERS {
            let args: Vec<_> = reader.split(' ').chain([file]).collect();
            assert!(!run(&args).is_empty(), "{args:?}");
        }
        run(&["convert", file, "-o", &format!("{format}.xtrace")]);
        let again = format!("again.{file}");
        run(&["convert", &format!("{format}.xtrace"), "-o", &again]);
        let read = |name: &str| fs::read_to_string(dir.path().join(name)).unwrap();
        // A call without an exit ends at the event before, so its end is not compared.
        let lines = |text: String| -> Vec<String> {
            let lines = text.lines().filter(|line| !line.contains("no exit seen"));
            lines.map(str::to_owned).collect()
        };
        assert_eq!(lines(read(&again)), lines(read(file)), "{format}");
    }
}

#[test]
fn damaged_exports_are_reported_and_salvaged() {
    let dir = tempfile::tempdir().unwrap();
    let good = "{\"time_ns\":1,\"pid\":1,\"tid\":1,\"event\":\"enter\",\"function_id\":0}\n";
    fs::write(
        dir.path().join("bad.jsonl"),
        format!("{good}{{\"pid\":1}}\n"),
    )
    .unwrap();
    let ran = xrayctl_in(dir.path(), ["account", "bad.jsonl"]);
    assert_eq!(ran.code, 1, "{}", ran.err);
    assert_eq!(
        ran.err,
        "xrayctl: cannot read bad.jsonl: line 2 of the JSON lines: the field time_ns is missing\n"
    );
    let ran = xrayctl_in(dir.path(), ["account", "--salvage", "bad.jsonl"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err.contains("bad.jsonl: left out: line 2"),
        "{}",
        ran.err
    );
    // Counters and other phases are no calls.
    let events = "[{\"ph\":\"X\",\"ts\":1,\"dur\":1,\"name\":\"f\"},{\"ph\":\"C\",\"ts\":1}]";
    fs::write(dir.path().join("events.json"), events).unwrap();
    let ran = xrayctl_in(dir.path(), ["account", "events.json"]);
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(
        ran.err
            .contains("events.json: ignored trace events of phase C"),
        "{}",
        ran.err
    );
}

#[test]
fn flight_logs_and_maps_may_come_through_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let map = "---\n- { id: 1, address: 0x10, function: 0x10, kind: function-enter, always-instrument: true }\n...\n";
    fs::write(dir.path().join("map.yaml"), map).unwrap();
    for line in [
        "$XRAYCTL convert small.xtrace -f fdr -o log; cmp <($XRAYCTL fdr-dump - < log) <($XRAYCTL fdr-dump log)",
        "cmp <(cat log | $XRAYCTL fdr-dump -) <($XRAYCTL fdr-dump log)",
        "cmp <(cat map.yaml | $XRAYCTL extract -) <($XRAYCTL extract map.yaml)",
        "cmp <($XRAYCTL account log -m <(cat map.yaml)) <($XRAYCTL account log -m map.yaml)",
        "$XRAYCTL fdr-dump log | grep -q Enter && $XRAYCTL extract map.yaml | grep -q function-enter",
    ] {
        let ran = shell(dir.path(), line);
        assert!(ran.status.success(), "{line}: {ran:?}");
    }
}

#[test]
fn a_full_disk_is_reported() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    for reader in READERS.iter().chain(&["flame -o -"]) {
        let ran = shell(
            dir.path(),
            &format!("$XRAYCTL {reader} small.xtrace > /dev/full"),
        );
        let err = text(&ran.stderr);
        assert_eq!(ran.status.code(), Some(1), "{reader}: {err}");
        let expected = "cannot write to standard output: No space left on device";
        assert!(err.contains(expected), "{reader}: {err}");
    }
}

#[test]
fn a_flame_graph_that_nobody_reads_to_its_end_is_no_failure() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let line = "$XRAYCTL flame small.xtrace -o - | head -c 5; exit ${PIPESTATUS[0]}";
    let ran = shell(dir.path(), line);
    assert_eq!(
        (ran.status.code(), text(&ran.stdout).as_str()),
        (Some(0), "<?xml")
    );
}

/// A limit on the size of files stands for a full disk. A program that ignores the limit's signal
/// gets an error as on a full disk, other programs are killed.
#[test]
fn an_interrupted_command_leaves_no_file() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let before = names(dir.path());
    for output in [
        "convert small.xtrace -o new.json",
        "convert small.xtrace -o new.xtrace",
        "convert small.xtrace -o old.json --force",
        "account small.xtrace -o old.json",
        "flame small.xtrace -o new.svg",
        "graph small.xtrace -o new.dot",
    ] {
        fs::write(dir.path().join("old.json"), "precious").unwrap();
        let reported = shell(
            dir.path(),
            &format!("trap '' XFSZ; ulimit -f 0; exec $XRAYCTL {output}"),
        );
        let err = text(&reported.stderr);
        assert_eq!(reported.status.code(), Some(1), "{output}: {err}");
        assert!(
            err.contains("cannot write") && err.contains("File too large"),
            "{err}"
        );
        let killed = shell(
            dir.path(),
            &format!("ulimit -c 0; ulimit -f 0; exec $XRAYCTL {output}"),
        );
        assert_eq!(killed.status.signal(), Some(25), "{output}: {killed:?}");
        let old = fs::read_to_string(dir.path().join("old.json")).unwrap();
        assert_eq!(old, "precious", "{output}");
        fs::remove_file(dir.path().join("old.json")).unwrap();
        assert_eq!(names(dir.path()), before, "{output}");
    }
}

/// A directory always has a name, so it has another one until it is complete.
#[test]
fn a_directory_that_was_cut_off_says_so() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let convert = "exec $XRAYCTL convert small.xtrace -o new.ctf";
    let reported = shell(dir.path(), &format!("trap '' XFSZ; ulimit -f 0; {convert}"));
    assert_eq!(reported.status.code(), Some(1), "{reported:?}");
    assert_eq!(names(dir.path()), ["small.xtrace"]);
    let killed = shell(dir.path(), &format!("ulimit -c 0; ulimit -f 0; {convert}"));
    assert_eq!(killed.status.signal(), Some(25), "{killed:?}");
    assert_eq!(names(dir.path()), ["new.ctf.unfinished", "small.xtrace"]);
    let again = shell(dir.path(), convert);
    let err = text(&again.stderr);
    assert!(err.contains("new.ctf.unfinished already exists"), "{err}");
    fs::remove_dir_all(dir.path().join("new.ctf.unfinished")).unwrap();
    let whole = shell(dir.path(), &format!("{convert}/"));
    assert!(whole.status.success(), "{whole:?}");
    assert_eq!(names(dir.path()), ["new.ctf", "small.xtrace"]);
}

#[test]
fn a_file_that_is_replaced_keeps_its_rights_and_its_links() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    let (old, link) = (dir.path().join("old.csv"), dir.path().join("link.csv"));
    fs::write(&old, "old").unwrap();
    fs::set_permissions(&old, fs::Permissions::from_mode(0o640)).unwrap();
    std::os::unix::fs::symlink("old.csv", &link).unwrap();
    let ran = xrayctl_in(
        dir.path(),
        ["convert", "small.xtrace", "-o", "link.csv", "--force"],
    );
    assert_eq!(ran.code, 0, "{}", ran.err);
    assert!(link.is_symlink());
    assert!(fs::read_to_string(&old).unwrap().starts_with("time_ns,"));
    assert_eq!(
        fs::metadata(&old).unwrap().permissions().mode() & 0o777,
        0o640
    );
}

#[test]
fn only_regular_files_are_written_to() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    fs::create_dir(dir.path().join("directory.csv")).unwrap();
    std::os::unix::fs::symlink("nowhere", dir.path().join("dangling.csv")).unwrap();
    for output in ["/dev/full", "directory.csv", "dangling.csv", "slash/"] {
        for more in [&[][..], &["--force"]] {
            let args = ["convert", "small.xtrace", "--to", "csv", "-o", output];
            let ran = xrayctl_in(dir.path(), [&args, more].concat());
            assert_eq!(ran.code, 1, "{output}");
            assert!(
                ran.err
                    .contains("is not a regular file; - is standard output"),
                "{}",
                ran.err
            );
        }
    }
    let args = ["convert", "small.xtrace", "-o", "no/where.csv"];
    let ran = xrayctl_in(dir.path(), args);
    assert!(
        ran.err.contains("cannot write no/where.csv: No such file"),
        "{}",
        ran.err
    );
}

#[test]
fn a_terminal_gets_text_only() {
    let dir = tempfile::tempdir().unwrap();
    small_trace(dir.path());
    // A program within `script` has a terminal.
    let on_terminal = |args: &str| {
        let line = format!("script -qec \"$XRAYCTL convert small.xtrace {args}\" /dev/null");
        shell(dir.path(), &line)
    };
    for format in ["", "--to fdr", "--to xtrace", "--to perfetto", "--to pprof"] {
        let ran = on_terminal(format);
        assert_eq!(ran.status.code(), Some(2), "{format}");
        let reported = text(&ran.stdout);
        assert!(
            reported.contains("a terminal cannot show the format"),
            "{reported}"
        );
    }
    let ran = on_terminal("--to csv");
    assert!(ran.status.success() && text(&ran.stdout).contains("time_ns,"));
}

#[test]
fn a_program_is_not_replaced_by_its_map() {
    let dir = tempfile::tempdir().unwrap();
    let map = dir.path().join("map.yaml");
    fs::write(&map, "--- []\n").unwrap();
    let map = map.to_str().unwrap();
    let ran = xrayctl(["extract", map, "-o", map, "--force"]);
    assert_eq!(ran.code, 2, "{}", ran.err);
    assert!(ran.err.contains("is an input"), "{}", ran.err);
}
