//! The HTML page: its content equals the results of the analyses, no name leaves its document, and
//! it is never too large.

use std::collections::BTreeMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use proptest::prelude::*;
use serde_json::Value;
use xray_trace::analysis::{
    AccountOptions, Filter, Siblings, Side, StackRoots, StackTrie, account,
};
use xray_trace::container::{BlockEncoder, RunsEncoder, Writer};
use xray_trace::model::{ContextSwitch, Profile, RunState, Thread, ThreadId, Ticks, Trace};
use xray_trace::sink::{NoteTone, Page, PageNote, Standing};

use crate::any_trace::any_trace;
use crate::common::{Enter, Exit, anchor, call, function, module, process, push, thread, trace};
use crate::runs::{with_rests, with_runs};

const BEGIN: &str = "<script id=\"data\" type=\"text/plain\">";

/// The greatest size of a page.
const MOST: usize = 20_000_000;

/// A document in the form that the scripts read.
struct Document {
    head: Value,
    numbers: Vec<u8>,
}

impl Document {
    fn of_page(page: &str) -> Self {
        let (_, data) = page.split_once(BEGIN).unwrap();
        let (data, _) = data.split_once("</script>").unwrap();
        let packed = STANDARD.decode(data).unwrap();
        let mut plain = Vec::new();
        GzDecoder::new(&packed[..]).read_to_end(&mut plain).unwrap();
        Self::new(&plain)
    }

    fn new(bytes: &[u8]) -> Self {
        let (len, rest) = bytes.split_first_chunk().unwrap();
        let (head, numbers) = rest.split_at(u32::from_le_bytes(*len) as usize);
        Self {
            head: serde_json::from_slice(head).unwrap(),
            numbers: numbers.to_vec(),
        }
    }

    fn column(&self, name: &str) -> Vec<u64> {
        let place = self.head["columns"][name].as_array().unwrap();
        let [at, len, count] = [0, 1, 2].map(|part: usize| place[part].as_u64().unwrap() as usize);
        let mut numbers = Vec::new();
        let (mut number, mut shift) = (0, 0);
        for byte in &self.numbers[at..at + len] {
            number |= u64::from(byte & 127) << shift;
            shift += 7;
            if *byte < 128 {
                numbers.push(number);
                (number, shift) = (0, 0);
            }
        }
        assert_eq!(numbers.len(), count, "{name}");
        numbers
    }

    fn sum(&self, name: &str) -> u64 {
        self.column(name).into_iter().fold(0, u64::saturating_add)
    }

    fn name(&self, number: u64) -> &str {
        self.head["names"][number as usize].as_str().unwrap()
    }
}

fn written(page: &Page, standing: Standing) -> String {
    let mut bytes = Vec::new();
    page.write(standing, &mut bytes).unwrap();
    String::from_utf8(bytes).unwrap()
}

fn page(trace: &Trace, filter: &Filter) -> Page {
    Page::of_trace(trace, filter, "run.xtrace", "demo (4000)")
}

fn check(trace: &Trace) {
    let filter = Filter::default();
    let text = written(&page(trace, &filter), Standing::Alone);
    let document = Document::of_page(&text);
    // The table.
    let account = account(trace, &filter, AccountOptions::default());
    let mut expected = BTreeMap::<String, Vec<u64>>::new();
    for row in &account.rows {
        let durations = row.durations.unwrap_or_default();
        let name = row.subject.name(trace).into_owned();
        let sums = expected.entry(name).or_insert_with(|| vec![0; 7]);
        let its = [
            row.calls,
            row.unfinished,
            row.total_ns,
            row.self_ns,
            row.sum_ns,
            durations.p99_ns,
            durations.max_ns,
        ];
        sums.iter_mut()
            .zip(its)
            .for_each(|(sum, its)| *sum = sum.saturating_add(its));
    }
    let columns = ["calls", "unfinished", "total", "self", "sum", "p99", "max"];
    let columns = columns.map(|name| document.column(&format!("function.{name}")));
    let mut found = BTreeMap::<String, Vec<u64>>::new();
    for (row, name) in document.column("function.name").into_iter().enumerate() {
        let sums = found
            .entry(document.name(name).to_owned())
            .or_insert_with(|| vec![0; 7]);
        for (at, (sum, column)) in sums.iter_mut().zip(&columns).enumerate() {
            // Durations are stored + 1, because 0 means unknown.
            let its = if at < 5 {
                column[row]
            } else {
                column[row].saturating_sub(1)
            };
            *sum = sum.saturating_add(its);
        }
    }
    assert_eq!(found, expected);
    let finished: u64 = account
        .rows
        .iter()
        .map(|row| row.calls - row.unfinished)
        .sum();
    assert_eq!(document.sum("bar.calls"), finished);
    // The stacks.
    let mut stacks = StackTrie::default();
    stacks.add(
        trace,
        &filter,
        Siblings::Closed,
        StackRoots::Together,
        Side::Before,
    );
    let counts = || stacks.nodes().iter().map(|node| node.counts[0]);
    assert_eq!(
        document.sum("frame.calls"),
        counts().map(|counts| counts.calls).sum::<u64>()
    );
    let self_ns = counts()
        .map(|counts| counts.self_ns)
        .fold(0, u64::saturating_add);
    assert_eq!(document.sum("frame.self"), self_ns);
    // The timeline.
    let drawn = document.column("call.len").len() as u64 + document.sum("slice.calls");
    let calls: u64 = account.rows.iter().map(|row| row.calls).sum();
    assert_eq!(drawn, calls);
    assert_eq!(document.head["events"], trace.totals().calls);
    assert_eq!(document.head["lost"], trace.totals().lost);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_page_says_what_the_analyses_say(trace in any_trace()) {
        check(&trace);
    }
}

/// The parts of the page outside the document are the same for all names.
#[test]
fn hostile_names_stay_in_the_document() {
    const HOSTILE: &str =
        "</script><script>alert(1)</script><img src=x onerror=alert(2)>]]>--><!--{{data}}";
    let events = [
        call(0, 0, Enter),
        call(100, 1, Enter),
        call(200, 1, Exit),
        call(300, 0, Exit),
    ];
    let make = |name: &str| {
        let mut writer = Writer::new(Vec::new()).unwrap();
        writer
            .add(&xray_trace::model::Process {
                command: name.into(),
                executable: name.into(),
                ..process(0)
            })
            .unwrap();
        writer
            .add(&xray_trace::model::Module {
                path: name.into(),
                ..module(0, 0)
            })
            .unwrap();
        for id in 0..2 {
            writer.add(&function(id, 0, name)).unwrap();
        }
        writer
            .add(&Thread {
                name: name.into(),
                ..thread(0, 0)
            })
            .unwrap();
        writer.add(&anchor(0, 0)).unwrap();
        let mut encoder = BlockEncoder::new(ThreadId(0));
        events.iter().for_each(|event| push(&mut encoder, *event));
        writer.block(&encoder.finish().unwrap()).unwrap();
        let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
        let mut page = Page::of_trace(&trace, &Filter::default(), name, name);
        page.add_note(PageNote {
            tone: NoteTone::Bad,
            text: name.into(),
            span_ns: Some((0, 1)),
        });
        page
    };
    for standing in [Standing::Alone, Standing::Served] {
        let without_data = |page: &str| {
            let (before, data) = page.split_once(BEGIN).unwrap();
            let (data, after) = data.split_once("</script>").unwrap();
            let plain = |letter: char| letter.is_ascii_alphanumeric() || "+/=".contains(letter);
            assert!(data.chars().all(plain));
            format!("{before}{after}")
        };
        let hostile = written(&make(HOSTILE), standing);
        assert_eq!(
            without_data(&hostile),
            without_data(&written(&make("f"), standing))
        );
        let document = Document::of_page(&hostile);
        let name = document.column("function.name")[0];
        assert_eq!(document.name(name), HOSTILE);
        assert_eq!(document.head["notes"][0]["text"], HOSTILE);
        assert_eq!(document.head["served"], standing == Standing::Served);
    }
}

/// The page's own parts: two scripts, a policy that allows no traffic in or out, and one address at
/// most.
#[test]
fn the_page_asks_nobody_for_anything() {
    let alone = written(
        &page(&trace(&["f"], &[]), &Filter::default()),
        Standing::Alone,
    );
    assert_eq!(alone.matches("<script").count(), 2);
    assert_eq!(alone.matches("</script").count(), 2);
    assert_eq!(alone.matches("<style").count(), 1);
    for part in [
        "default-src 'none'",
        "connect-src 'none'",
        "base-uri 'none'",
        "form-action 'none'",
    ] {
        assert!(alone.contains(part), "{part}");
    }
    assert!(!alone.contains("{{"), "a mark was left over");
    let addresses = alone
        .match_indices("://")
        .map(|(at, _)| alone[at + 3..].split(['/', '"', '\'', ')']).next().unwrap());
    let strangers: Vec<_> = addresses
        .filter(|host| {
            ![
                "www.w3.org",
                "ui.perfetto.dev",
                "perfetto.dev",
                "bottosson.github.io",
            ]
            .contains(host)
        })
        .collect();
    assert!(strangers.is_empty(), "{strangers:?}");
}

/// Numbers without a pattern, the same in each run.
fn noise() -> impl FnMut(u64) -> u64 {
    let mut state = 7_u64;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

#[test]
fn a_page_is_never_too_large() {
    ensure_small_enough(WithRuns::No);
}

#[test]
fn a_page_with_run_times_is_never_too_large() {
    ensure_small_enough(WithRuns::Yes);
}

#[derive(PartialEq)]
enum WithRuns {
    No,
    Yes,
}

/// More of everything than the limits allow: functions with long names that do not compress,
/// threads, depth, calls of every length, and times without a processor.
fn ensure_small_enough(with_runs: WithRuns) {
    const FUNCTIONS: u32 = 9_000;
    const THREADS: u32 = 300;
    let mut random = noise();
    let mut writer = Writer::new(Vec::new()).unwrap();
    writer.add(&process(0)).unwrap();
    writer.add(&module(0, 0)).unwrap();
    for id in 0..FUNCTIONS {
        let name: String = (0..1200)
            .map(|_| char::from(b' ' + random(90) as u8))
            .collect();
        writer.add(&function(id, 0, &name)).unwrap();
    }
    writer.add(&anchor(0, 0)).unwrap();
    let mut calls = 0_u64;
    for id in 0..THREADS {
        writer.add(&thread(id, 0)).unwrap();
        let mut encoder = BlockEncoder::new(ThreadId(id));
        let mut now = 0;
        let mut open = Vec::new();
        for _ in 0..4_000 {
            let longest = 1 << (1 + random(34));
            now += random(longest);
            if open.len() < 140 && (open.is_empty() || random(100) < 52) {
                let its = random(FUNCTIONS.into()) as u32;
                push(&mut encoder, call(now, its, Enter));
                open.push(its);
                calls += 1;
            } else {
                push(&mut encoder, call(now, open.pop().unwrap(), Exit));
            }
        }
        writer.block(&encoder.finish().unwrap()).unwrap();
        if with_runs == WithRuns::Yes {
            let mut runs = RunsEncoder::new(0);
            let mut at_ns = 0;
            for turn in 0..2_000_u64 {
                at_ns += 1 + random(now / 1_000);
                let off = [RunState::Ready, RunState::Waiting][random(2) as usize];
                runs.push(ContextSwitch {
                    at_ns,
                    to: if turn % 2 == 1 {
                        RunState::Running
                    } else {
                        off
                    },
                    processor: 1,
                });
            }
            writer
                .runs(&runs.take(ThreadId(id), at_ns.max(now)))
                .unwrap();
        }
    }
    writer.add(&anchor(1 << 50, 1 << 50)).unwrap();
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    let page = page(&trace, &Filter::default());
    let text = written(&page, Standing::Alone);
    assert!(text.len() <= MOST, "{} bytes", text.len());
    let document = Document::of_page(&text);
    // The document has the counts of the parts that were left out.
    let left_out = &document.head["functionsLeftOut"];
    let rest = left_out["calls"].as_u64().unwrap();
    assert_eq!(document.sum("function.calls") + rest, calls);
    assert_eq!(
        document.column("function.calls").len() as u64 + left_out["functions"].as_u64().unwrap(),
        u64::from(FUNCTIONS)
    );
    assert!(document.head["namesLeftOut"].as_u64().unwrap() > 0);
    assert_eq!(document.head["otherThreads"], 300 - 256);
    assert_eq!(document.sum("frame.calls"), calls);
    if with_runs == WithRuns::Yes {
        let heads = document.head["threads"].as_array().unwrap();
        let left_out = heads.iter().filter_map(|head| head["offLeftOut"].as_u64());
        assert!(left_out.sum::<u64>() > 0);
        let off = document.column("off.len").len();
        assert!((30_000..=40_000).contains(&off), "{off} times");
    }
    // A window of it is not longer either.
    let window = page.window(&trace, 0, u64::MAX);
    assert!(window.len() <= MOST, "{} bytes", window.len());
}

/// A page does not have room for every call of this trace, but a window has every call of its time.
#[test]
fn a_window_has_every_call() {
    let mut events = Vec::new();
    for at in 0..600_000 {
        events.extend([
            call(at * 100, 0, Enter),
            call(at * 100 + 10 + at % 7, 0, Exit),
        ]);
    }
    let trace = trace(&["f"], &[&events]);
    let page = page(&trace, &Filter::default());
    let document = Document::of_page(&written(&page, Standing::Served));
    let one_by_one = document.column("call.len").len() as u64;
    assert!(one_by_one < 600_000);
    assert_eq!(one_by_one + document.sum("slice.calls"), 600_000);
    let window = Document::new(&page.window(&trace, 1_000_000, 2_000_000));
    assert_eq!(window.column("call.len").len(), 10_000);
    assert_eq!(window.sum("slice.calls"), 0);
    // Times and functions are those of the page.
    assert_eq!(window.column("call.gap")[0], 1_000_000);
    assert!(window.column("call.what").iter().all(|what| *what == 2));
    for (since, until) in [
        (5, 5),
        (9, 3),
        (u64::MAX, u64::MAX),
        (0, 0),
        (u64::MAX - 1, u64::MAX),
    ] {
        let nothing = Document::new(&page.window(&trace, since, until));
        assert!(nothing.column("call.len").len() <= 1, "{since} to {until}");
    }
}

/// A call around a window is not a call without an exit.
#[test]
fn a_window_has_the_calls_that_go_on() {
    let events = [
        call(100, 0, Enter),
        call(200, 1, Enter),
        call(300, 1, Exit),
        call(900, 0, Exit),
    ];
    let trace = trace(&["f", "g"], &[&events]);
    let page = page(&trace, &Filter::default());
    let document = Document::of_page(&written(&page, Standing::Served));
    assert!(document.head["columns"]["lane.goes_on"].is_null());
    // Times in the page begin with the first event.
    let window = Document::new(&page.window(&trace, 50, 300));
    assert_eq!(window.column("lane.depth"), [0, 1]);
    assert_eq!(window.column("lane.goes_on"), [1, 0]);
    assert_eq!(window.column("call.len"), [300, 100]);
    let no_exit = window.column("call.what").into_iter();
    assert_eq!(no_exit.map(|what| what % 2).collect::<Vec<_>>(), [1, 0]);
}

#[test]
fn run_times_are_in_the_page() {
    let trace = with_runs();
    let page = page(&trace, &Filter::default());
    let document = Document::of_page(&written(&page, Standing::Served));
    let window = Document::new(&page.window(&trace, 0, 400));
    for document in [&document, &window] {
        assert_eq!(document.head["runs"], true);
        assert_eq!(document.head["threads"][0]["offLeftOut"], 0);
        assert_eq!(document.column("off.thread"), [0, 0]);
        // Ready from 100 ns on after the first event, then waiting.
        assert_eq!(document.column("off.gap"), [100, 150]);
        assert_eq!(document.column("off.state"), [1, 2]);
    }
    // The second time ends after the window.
    for document in [&document, &window] {
        assert_eq!(document.column("off.len"), [50, 200]);
    }
    // By depth: f, the second g, whose time is unknown, and the first g.
    assert_eq!(document.column("call.off"), [251, 0, 201]);
    assert_eq!(document.column("call.ready"), [50, 0, 0]);
    // The longest calls of f and of g.
    let mut longest = document.column("longest.off");
    longest.sort_unstable();
    assert_eq!(longest, [0, 201, 251]);
    assert_eq!(document.sum("longest.ready"), 50);
}

#[test]
fn without_run_times_the_page_has_none() {
    let trace = trace(&["f"], &[&[call(0, 0, Enter), call(9, 0, Exit)]]);
    let document = Document::of_page(&written(&page(&trace, &Filter::default()), Standing::Alone));
    assert_eq!(document.head["runs"], false);
    for column in ["call.off", "call.ready", "longest.off", "off.len"] {
        assert!(document.head["columns"][column].is_null(), "{column}");
    }
}

#[test]
fn times_without_a_processor_beyond_the_limit_are_counted() {
    const RESTS: u64 = 50_000;
    let trace = with_rests(RESTS);
    let page = page(&trace, &Filter::default());
    let document = Document::of_page(&written(&page, Standing::Served));
    let shown = document.column("off.len");
    assert_eq!(shown.len(), 40_000);
    let head = &document.head["threads"][0];
    assert_eq!(
        (&head["offLeftOut"], &head["offKeptFrom"]),
        (&10_000.into(), &10_001.into())
    );
    assert_eq!(shown.iter().min(), Some(&10_001));
    // The time of the call counts all of them.
    assert_eq!(document.column("call.off"), [1 + RESTS * (RESTS + 1) / 2]);
    // A window of the page has the short ones of its time.
    let window = Document::new(&page.window(&trace, 0, 65));
    assert_eq!(window.column("off.len"), [1, 2, 3, 4, 5]);
}

/// A profile has a table and stacks.
#[test]
fn a_profile_has_no_timeline() {
    use xray_trace::model::{FunctionId, ProfiledStack};
    let tables = trace(&["f", "g"], &[]);
    let stack = |caller, function, calls, self_ns| ProfiledStack {
        thread: ThreadId(0),
        caller,
        function: FunctionId(function),
        calls,
        self_ns,
    };
    let profile = Profile::new(
        tables,
        vec![stack(None, 0, 1, 70), stack(Some(0), 1, 9, 30)],
    );
    let page = Page::of_profile(&profile, &Filter::default(), "p", "");
    let document = Document::of_page(&written(&page, Standing::Alone));
    assert_eq!(document.head["kind"], "profile");
    assert_eq!(document.sum("function.calls"), 10);
    assert_eq!(document.sum("frame.self"), 100);
    assert!(document.head["columns"]["call.len"].is_null());
}

#[test]
fn the_time_of_a_part_is_reported() {
    let events = [
        call(1000, 0, Enter),
        call(2000, 0, Exit),
        call(3000, 0, Enter),
        call(9000, 0, Exit),
    ];
    let trace = trace(&["f"], &[&events]);
    let filter = Filter {
        since: Some(Ticks(2500)),
        until: Some(Ticks(4000)),
        ..Filter::default()
    };
    let document = Document::of_page(&written(&page(&trace, &filter), Standing::Alone));
    assert_eq!(
        (
            document.head["since"].as_u64(),
            document.head["until"].as_u64()
        ),
        (Some(1500), Some(3000))
    );
    assert_eq!(document.head["span"], 8000);
    assert_eq!(document.head["part"], true);
    assert_eq!(document.column("call.gap"), [2000]);
}
