//! The report as a page, in a browser.

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context as _, Result, ensure};
use integration::{Fixture, GroundTruth, Target};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::browser::Browser;
use crate::runs::{self, HOSTILE, NAMES, ROUNDS};
use crate::scene::{Cli, Scene, rows, sleds_on};

/// The limit on the bytes of the page.
const MOST: u64 = 20_000_000;

/// The page of a small trace, in a browser.
fn shown(scene: &Scene) -> Result<(Cli, Browser)> {
    let cli = scene.alone()?;
    runs::small(&scene.path("run.xtrace"))?;
    cli.ok(["report", "run.xtrace", "--html", "-o", "run.html"])?;
    let browser = Browser::start()?;
    browser.open_file(&scene.path("run.html"))?;
    Ok((cli, browser))
}

/// The rows of `account` for a trace.
fn account(cli: &Cli, file: &str) -> Result<Vec<Value>> {
    let table = cli.ok(["account", file, "--format", "json"])?;
    let table: Value = serde_json::from_str(&table)?;
    Ok(rows(&table, "rows")?.clone())
}

/// Checks that every number of the table is the same as in `account`.
fn ensure_same_numbers(browser: &Browser, account: &[Value]) -> Result<()> {
    let columns = [
        "id",
        "calls",
        "unfinished",
        "total",
        "self",
        "sum",
        "min",
        "mean",
        "median",
        "p90",
        "p99",
        "p999",
        "max",
    ];
    let list = columns.map(|column| format!("'{column}'")).join(", ");
    let table = browser.run(&format!(
        "const {{ table }} = xrayReport;
         return table.name.map((name, row) => [name, ...[{list}].map((key) => table[key][row])])"
    ))?;
    let table = table.as_array().context("no table")?;
    let mut found = BTreeMap::new();
    for row in table {
        found.insert(row[1].as_u64().context("no id")?, row);
    }
    ensure!(found.len() == account.len() && table.len() == account.len());
    for row in account {
        let id = row["id"].as_u64().context("no id")?;
        let its = found
            .get(&id)
            .with_context(|| format!("no function {id}"))?;
        ensure!(its[0] == row["name"], "{its} is not {row}");
        for (at, column) in columns.iter().enumerate().skip(1) {
            let key = match *column {
                "calls" | "unfinished" => (*column).to_owned(),
                column => format!("{column}_ns"),
            };
            // NaN is null in JSON.
            let same = its[at + 1].as_f64() == row[&key].as_f64();
            ensure!(same, "{column}: {its} is not {row}");
        }
    }
    Ok(())
}

#[test]
fn the_page_draws_itself_and_has_the_numbers_of_account() -> Result<()> {
    let scene = Scene::new()?;
    let (cli, browser) = shown(&scene)?;
    ensure_same_numbers(&browser, &account(&cli, "run.xtrace")?)?;
    ensure!(browser.colours("flame")? > 4.0, "the flame graph is blank");
    let facts = browser.text("document.getElementById('facts').innerText.replace(/\\s+/g, ' ')")?;
    for fact in ["lost 17", "threads 2", "functions 4", "events 643"] {
        ensure!(facts.contains(fact), "no {fact} in {facts}");
    }
    browser.press("2")?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    ensure!(browser.colours("timeline")? > 4.0, "the timeline is blank");
    // The table in its default order: greatest self time first.
    browser.press("3")?;
    browser.until("document.querySelectorAll('#table .row').length === 4")?;
    let first =
        browser.text("document.querySelector('#table .row').innerText.replace(/\\s+/g, ' ')")?;
    ensure!(
        first.starts_with("app::store() 80 4.000 ms 3.200 ms 50.00 µs"),
        "{first}"
    );
    browser.ensure_quiet(&[])
}

#[test]
fn keys_wheel_and_clicks_zoom() -> Result<()> {
    let scene = Scene::new()?;
    let (_, browser) = shown(&scene)?;
    let length = |view: &str| {
        browser.number(&format!(
            "xrayReport.{view}.view.to - xrayReport.{view}.view.from"
        ))
    };
    for (key, view) in [("1", "flame"), ("2", "timeline")] {
        browser.press(key)?;
        browser.until(&format!("xrayReport.{view}.surface.width > 0"))?;
        let whole = length(view)?;
        browser.press("w")?;
        let nearer = length(view)?;
        ensure!(
            (nearer - whole / 1.5).abs() < whole * 0.01,
            "{view}: {nearer} of {whole}"
        );
        browser.press("s")?;
        ensure!((length(view)? - whole).abs() < whole * 0.01, "{view}");
        // The place under the pointer stays there.
        let canvas = format!("#{view}");
        let under = format!(
            "xrayReport.{view}.view.from + (xrayReport.{view}.view.to - xrayReport.{view}.view.from) * 0.75"
        );
        let x = match view {
            "flame" => browser.number("xrayReport.flame.surface.width * 0.75")?,
            _ => browser.number("xrayReport.timeline.gutter + (xrayReport.timeline.surface.width - xrayReport.timeline.gutter) * 0.75")?,
        };
        let before = browser.number(&under)?;
        browser.wheel(&canvas, x, 60.0, -400)?;
        browser.until(&format!(
            "xrayReport.{view}.view.to - xrayReport.{view}.view.from < {whole} * 0.8"
        ))?;
        ensure!(
            (browser.number(&under)? - before).abs() < whole * 0.005,
            "{view}: {before}"
        );
        let from = browser.number(&format!("xrayReport.{view}.view.from"))?;
        browser.press("d")?;
        ensure!(
            browser.number(&format!("xrayReport.{view}.view.from"))? > from,
            "{view}"
        );
        browser.drag(&canvas, (x - 200.0, 100.0), (x, 100.0))?;
        browser.press("\u{e00c}")?;
        ensure!(length(view)? == whole, "{view}: Escape does not lead back");
    }
    // A click on a frame zooms to it.
    browser.press("1")?;
    browser.until("xrayReport.flame.surface.width > 0")?;
    browser.run("window.frame = xrayReport.flame.name.indexOf('app::store()')")?;
    let [x, y] =
        ["x", "y"].map(|axis| browser.number(&format!("xrayReport.flame.placeOf(frame).{axis}")));
    browser.click("#flame", x?, y?)?;
    let store = browser.number("xrayReport.flame.total[frame]")?;
    ensure!(length("flame")? == store && store == 4_000_000.0, "{store}");
    let chosen = browser.text("document.getElementById('chosen').innerText")?;
    ensure!(
        chosen.contains("app::store()")
            && chosen.contains("calls 80")
            && chosen.contains("4.000 ms"),
        "{chosen}"
    );
    // To a single call of the timeline.
    browser.press("2")?;
    browser.run("const lane = xrayReport.timeline.lines.lane(0, 0); window.place = { x: xrayReport.timeline.x((lane.start[7] + lane.end[7]) / 2), y: 28 + 6 + 8 }")?;
    browser.click(
        "#timeline",
        browser.number("place.x")?,
        browser.number("place.y")?,
    )?;
    let chosen = browser.text("document.getElementById('chosen').innerText")?;
    ensure!(
        chosen.contains("app::serve(int)") && chosen.contains("100.0 µs"),
        "{chosen}"
    );
    browser.press("f")?;
    ensure!(length("timeline")? < 140_000.0, "not near");
    browser.press("n")?;
    ensure!(browser.number("xrayReport.timeline.chosen.start")? == 150_000.0 * 8.0);
    browser.ensure_quiet(&[])
}

#[test]
fn a_search_marks_what_it_finds_and_says_how_much_time_that_is() -> Result<()> {
    let scene = Scene::new()?;
    let (_, browser) = shown(&scene)?;
    let found = || browser.text("document.getElementById('found').textContent");
    let search = |text: &str| -> Result<String> {
        browser.press("\u{e00c}/")?;
        browser.press(text)?;
        browser.until("document.activeElement.id === 'query'")?;
        found()
    };
    // A call that is open in the end has no known duration.
    let rounds = 2.0 * 40.0;
    let all = rounds * 100_000.0 + 1_000.0;
    ensure!(ROUNDS == 40);
    let share = |ns: f64| format!("{:.1} % of time", 100.0 * ns / all);
    let expected = format!("1 function, {}", share(rounds * 25_000.0));
    ensure!(
        search("PARSE")? == expected,
        "{} is not {expected}",
        found()?
    );
    let frames = browser.number("xrayReport.flame.markedShare().frames")?;
    ensure!(frames == 2.0, "{frames} frames");
    // Time within a match counts once.
    let expected = format!("3 functions, {}", share(rounds * 100_000.0));
    ensure!(
        search("app::")? == expected,
        "{} is not {expected}",
        found()?
    );
    ensure!(search("nobody")? == "nothing found");
    ensure!(
        search("/^app::(parse|store)/")?.starts_with("2 functions, "),
        "{}",
        found()?
    );
    ensure!(search("/(/")? == "not a regular expression");
    // The table shows only the matches.
    search("parse")?;
    browser.press("\u{e007}3")?;
    browser.until("document.querySelectorAll('#table .row').length === 1")?;
    browser.press("/")?;
    browser.press("\u{e00c}")?;
    browser.until("document.querySelectorAll('#table .row').length === 4")?;
    browser.ensure_quiet(&[])
}

#[test]
fn the_time_of_a_recursion_counts_once_for_its_callers_and_callees() -> Result<()> {
    let scene = Scene::new()?;
    let (_, browser) = shown(&scene)?;
    // main 10 > f 9 > f 7 > f 4 > g 1
    let found = browser.run(
        "const flame = Object.create(Object.getPrototypeOf(xrayReport.flame)); \
         const fields = { length: 5, parent: [-1, 0, 1, 2, 3], name: ['main', 'f', 'f', 'f', 'g'], \
             stacks: [0, 0, 0, 0, 0], total: [10, 9, 7, 4, 1] }; \
         for (const [key, value] of Object.entries(fields)) \
             Object.defineProperty(flame, key, { value }); \
         return flame.neighbours('f')",
    )?;
    let expected = serde_json::json!({
        "callers": [["main", 9], ["f", 7]],
        "callees": [["f", 7], ["g", 1]],
    });
    ensure!(found == expected, "{found}");
    browser.ensure_quiet(&[])
}

#[test]
fn light_and_dark_differ_in_page_and_drawing() -> Result<()> {
    let scene = Scene::new()?;
    let (_, browser) = shown(&scene)?;
    let paper = || -> Result<(String, Value)> {
        let page = browser.text("getComputedStyle(document.body).backgroundColor")?;
        // Above the few frames, the drawing is empty.
        let drawing = browser.run("return [...document.getElementById('flame').getContext('2d').getImageData(5, 5, 1, 1).data]")?;
        Ok((page, drawing))
    };
    let mut papers = Vec::new();
    for theme in ["light", "dark", ""] {
        browser.press("t")?;
        browser.until(&format!(
            "(document.documentElement.dataset.theme ?? '') === '{theme}'"
        ))?;
        browser.run("xrayReport.flame.surface.now()")?;
        papers.push(paper()?);
    }
    ensure!(
        papers[0].0 == "rgb(255, 255, 255)" && papers[0].1[0] == 255,
        "{papers:?}"
    );
    ensure!(
        papers[1].0 == "rgb(20, 24, 29)" && papers[1].1[0] == 20,
        "{papers:?}"
    );
    ensure!(
        papers[2].0 == papers[0].0 || papers[2].0 == papers[1].0,
        "{papers:?}"
    );
    browser.ensure_quiet(&[])
}

#[test]
fn losses_and_names_are_shown_as_they_are() -> Result<()> {
    let scene = Scene::new()?;
    let (_, browser) = shown(&scene)?;
    // Markup in a name is plain text.
    let title = browser.text("document.title")?;
    ensure!(title == "run.xtrace – xrayctl", "{title}");
    ensure!(browser.number("document.images.length")? == 0.0);
    browser.press("3")?;
    browser.until("document.querySelectorAll('#table .row').length === 4")?;
    let names = browser.run("return [...document.querySelectorAll('#table .row .name')].map((name) => name.textContent).sort()")?;
    let mut expected = NAMES.map(|name| name.to_owned());
    expected.sort();
    ensure!(names == serde_json::json!(expected), "{names}");
    ensure!(names[0] == HOSTILE);
    // The loss is a gap at its place, and a note.
    browser.press("2")?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    browser.run("const { timeline } = xrayReport; const [gap] = timeline.lines.threads[1].gaps; window.gap = { x: timeline.x((gap.start + gap.end) / 2), y: 28 + timeline.rows()[1].top + 8 - timeline.scroll }")?;
    browser.point(
        "#timeline",
        browser.number("gap.x")?,
        browser.number("gap.y")?,
    )?;
    browser.until("!document.getElementById('tip').hidden")?;
    let tip = browser.text("document.getElementById('tip').innerText")?;
    ensure!(
        tip.contains("Events were lost here") && tip.contains("17 events"),
        "{tip}"
    );
    browser.press("4")?;
    let notes = browser.text("document.getElementById('notes').innerText")?;
    for part in [
        "17 events lost",
        "1 call without an exit, because events were lost",
        "worker-1",
    ] {
        ensure!(notes.contains(part), "no {part:?} in {notes}");
    }
    browser.ensure_quiet(&[])
}

/// Moves the pointer to a moment of the timeline's first thread. Returns the text of the tooltip.
fn tip_at(browser: &Browser, ns: f64, lane: f64) -> Result<String> {
    let x = browser.number(&format!("xrayReport.timeline.x({ns})"))?;
    browser.point("#timeline", x, 28.0 + 6.0 + 17.0 * lane + 8.0)?;
    browser.until("!document.getElementById('tip').hidden")?;
    browser.text("document.getElementById('tip').innerText.replace(/\\s+/g, ' ')")
}

/// The colour of the timeline at a moment, `down` pixels below the top of a lane.
fn colour_at(browser: &Browser, ns: f64, lane: f64, down: f64) -> Result<String> {
    let y = 28.0 + 6.0 + 17.0 * lane + down;
    browser.text(&format!(
        "(() => {{
            const {{ data }} = document.getElementById('timeline').getContext('2d').getImageData(Math.round(xrayReport.timeline.x({ns})), {y}, 1, 1);
            return '#' + [...data].slice(0, 3).map((part) => part.toString(16).padStart(2, '0')).join('');
        }})()"
    ))
}

#[test]
fn calls_show_when_their_thread_had_no_processor() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    runs::scheduled(&scene.path("run.xtrace"))?;
    cli.ok(["report", "run.xtrace", "--html", "-o", "run.html"])?;
    let browser = Browser::start()?;
    browser.open_file(&scene.path("run.html"))?;
    browser.press("2")?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    ensure!(browser.value("document.getElementById('timeline-legend').checkVisibility()")? == true);
    // `parse` and `serve` around it look alike.
    let css = |name: &str| browser.text(&format!("colours.css.{name}"));
    let (ready, waiting) = (css("ready")?, css("waiting")?);
    for lane in [0.0, 1.0] {
        let [bar, is_ready, waits] = [350_000.0, 250_000.0, 600_000.0]
            .map(|ns| [1.0, 14.0].map(|down| colour_at(&browser, ns, lane, down)));
        let bar = bar.into_iter().collect::<Result<Vec<_>>>()?;
        let is_ready = is_ready.into_iter().collect::<Result<Vec<_>>>()?;
        let waits = waits.into_iter().collect::<Result<Vec<_>>>()?;
        ensure!(bar[0] == bar[1], "{bar:?}");
        ensure!(
            is_ready[0] == waits[0] && waits[0] != bar[0],
            "{bar:?}, {is_ready:?}, {waits:?}"
        );
        ensure!(
            (&is_ready[1], &waits[1]) == (&ready, &waiting),
            "{is_ready:?}, {waits:?}"
        );
    }
    // The sums of the call, and the time under the pointer.
    let parse = [
        NAMES[1],
        "on CPU 300.0 µs",
        "off CPU 500.0 µs",
        "ready to run 100.0 µs",
    ];
    for (ns, lane, parts) in [
        (
            250_000.0,
            1.0,
            vec!["had no processor for 100.0 µs: it was ready to run."],
        ),
        (
            600_000.0,
            1.0,
            vec!["had no processor for 400.0 µs: it waited."],
        ),
        (350_000.0, 1.0, vec![]),
        (
            600_000.0,
            0.0,
            vec![NAMES[0], "on CPU 500.0 µs", "it waited."],
        ),
    ] {
        let tip = tip_at(&browser, ns, lane)?;
        let of_call: &[_] = if lane == 1.0 { &parse } else { &[] };
        for part in of_call.iter().chain(&parts) {
            ensure!(tip.contains(part), "no {part:?} in {tip}");
        }
        ensure!(
            tip.contains("had no processor") != parts.is_empty(),
            "{tip}"
        );
    }
    // The run times end before the third call.
    let tip = tip_at(&browser, 4_500_000.0, 1.0)?;
    ensure!(tip.contains(NAMES[1]) && !tip.contains("CPU"), "{tip}");
    // Short times become pixels with their share.
    let pieces = browser.run(
        "const { timeline } = xrayReport;
         const { off } = timeline.lines.threads[0];
         const pieces = off.pieces(2e6, 3e6, 1e-4);
         return [pieces.share.length, Math.min(...pieces.share), Math.max(...pieces.share), off.start.length]",
    )?;
    ensure!(
        pieces == serde_json::json!([60, 0.5, 0.5, 3_002]),
        "{pieces}"
    );
    // A selected call has its sums below the timeline, and in the list of longest calls.
    browser.click(
        "#timeline",
        browser.number("xrayReport.timeline.x(600000)")?,
        28.0 + 6.0 + 8.0,
    )?;
    let chosen =
        browser.text("document.getElementById('chosen').innerText.replace(/\\s+/g, ' ')")?;
    ensure!(
        chosen.contains("on CPU 500.0 µs") && chosen.contains("off CPU 500.0 µs"),
        "{chosen}"
    );
    browser.press("3")?;
    browser.until("document.querySelectorAll('#table .row').length === 2")?;
    browser.run("xrayReport.functions.choose(0)")?;
    let details = browser.text("document.getElementById('details').innerText")?;
    ensure!(details.contains("500.0 µs off CPU"), "{details}");
    browser.ensure_quiet(&[])
}

#[test]
fn a_page_without_run_times_does_not_mention_them() -> Result<()> {
    let scene = Scene::new()?;
    let (_, browser) = shown(&scene)?;
    browser.press("2")?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    ensure!(
        browser.value("document.getElementById('timeline-legend').checkVisibility()")? == false
    );
    let tip = tip_at(&browser, 1_050_000.0 + 2_000.0, 0.0)?;
    ensure!(tip.contains(NAMES[0]) && !tip.contains("CPU"), "{tip}");
    browser.ensure_quiet(&[])
}

#[test]
fn a_part_has_a_page_too() -> Result<()> {
    let scene = Scene::new()?;
    let (cli, browser) = shown(&scene)?;
    let part = ["report", "run.xtrace", "--html", "-o", "part.html"];
    cli.ok(part.into_iter().chain([
        "--since",
        "1ms",
        "--until",
        "2ms",
        "--thread",
        "worker-0",
        "--function",
        "app::parse",
    ]))?;
    browser.open_file(&scene.path("part.html"))?;
    ensure!(
        browser.value("xrayReport.table.name")? == serde_json::json!(["app::parse(char const*)"])
    );
    // Rounds begin every 150 µs, and `parse` begins 5 µs after them.
    ensure!(browser.number("xrayReport.table.calls[0]")? == 7.0);
    let bounds = browser.value("xrayReport.timeline.bounds")?;
    ensure!(
        bounds["from"] == 1_000_000 && bounds["to"] == 2_000_000,
        "{bounds}"
    );
    browser.ensure_quiet(&[])?;
    // Standard output gets the same bytes.
    let printed = cli.ok(["report", "run.xtrace", "--html", "-o", "-"])?;
    ensure!(printed == fs::read_to_string(scene.path("run.html"))?);
    // A report that cannot be made leaves nothing behind.
    let refused = cli.run(["report", "run.xtrace", "--html", "-o", "run.xtrace"])?;
    refused.failed(2, &["run.xtrace is an input"])?;
    let refused = cli.run(["report", "run.html", "--html", "-o", "no.html"])?;
    refused.failed(1, &["cannot read run.html"])?;
    ensure!(!scene.path("no.html").exists());
    Ok(())
}

/// A profile has stacks and a table, and explains why there is no timeline.
#[test]
fn a_profile_has_a_page_without_a_timeline() -> Result<()> {
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    let mut target = Target::spawn(Fixture::Counted, ["--threads", "2", "--calls", "300"])?;
    let mut running = cli.start(["profile", &target.pid().to_string(), "-o", "p.xtrace"])?;
    running.until("functions are on", || {
        Ok((sleds_on(&target)? > 0).then_some(()))
    })?;
    let truth = GroundTruth::parse(&target.ask("go", "result ")?)?;
    running.signal(Signal::SIGINT)?;
    ensure!(running.wait()?.code == Some(0));
    cli.ok(["report", "p.xtrace", "--html", "-o", "p.html"])?;
    let browser = Browser::start()?;
    browser.open_file(&scene.path("p.html"))?;
    ensure_same_numbers(&browser, &account(&cli, "p.xtrace")?)?;
    let calls: u64 = truth.calls().iter().sum();
    let facts = browser.text("document.getElementById('facts').textContent")?;
    ensure!(
        browser.value("sum(xrayReport.table.calls)")? == calls,
        "{facts}"
    );
    ensure!(browser.colours("flame")? > 4.0, "the flame graph is blank");
    // Every view can be shown and every key can be pressed.
    browser.press("2wasd0fnp1wasd0fnp34")?;
    browser.press("2")?;
    ensure!(browser.value("document.getElementById('timeline-none').checkVisibility()")? == true);
    browser.ensure_quiet(&[])
}

/// Ten million events: the page is small enough, opens, and reacts to keys.
#[test]
fn ten_million_events_fit_a_page() -> Result<()> {
    const EVENTS: u64 = 10_000_000;
    let scene = Scene::new()?;
    let cli = scene.alone()?;
    runs::large(&scene.path("large.xtrace"), EVENTS)?;
    // The time of this on a busy machine does not matter.
    let made = cli
        .command(["report", "large.xtrace", "--html", "-o", "large.html"])
        .output()?;
    ensure!(made.status.success(), "{made:?}");
    let bytes = fs::metadata(scene.path("large.html"))?.len();
    ensure!(bytes <= MOST, "{bytes} bytes");
    let browser = Browser::start()?;
    browser.open_file(&scene.path("large.html"))?;
    ensure!(browser.number("xrayReport.head.events")? == EVENTS as f64);
    ensure_same_numbers(&browser, &account(&cli, "large.xtrace")?)?;
    ensure!(browser.colours("flame")? > 20.0);
    browser.press("2")?;
    browser.until("xrayReport.timeline.surface.width > 0")?;
    ensure!(browser.colours("timeline")? > 20.0);
    // Single calls and summed calls are together all calls.
    let calls = browser.run(
        "const { timeline } = xrayReport;
         let calls = 0;
         for (const thread of timeline.lines.threads) for (const lane of thread.lanes) calls += lane.start.length + lane.slices.before.at(-1);
         return calls",
    )?;
    ensure!(calls == EVENTS / 2, "{calls} calls");
    let says = browser.text("document.getElementById('timeline-says').textContent")?;
    ensure!(says.contains("are summed up here"), "{says}");
    for key in ["w", "w", "w", "d", "w", "w"] {
        browser.press(key)?;
    }
    ensure!(browser.colours("timeline")? > 20.0);
    let says = browser.text("document.getElementById('timeline-says').textContent")?;
    ensure!(
        says.contains("xrayctl report FILE --html --since "),
        "{says}"
    );
    // For measurements.
    eprintln!(
        "{bytes} bytes, drawn in {} ms",
        browser.number("xrayReport.timeline.surface.took")?
    );
    browser.ensure_quiet(&[])
}
