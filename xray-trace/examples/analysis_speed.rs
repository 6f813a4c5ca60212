//! Measures the speed of analyses of a trace, on one core. Run it with `--release`.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod walk;

use std::time::Instant;

use xray_trace::analysis::{
    AccountOptions, Call, Filter, Graph, Open, Siblings, Side, StackRoots, StackTrie, Steps,
    Visitor, account,
};
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{ClockAnchor, FunctionId, ThreadId, Ticks, Trace};

use self::walk::{Program, Walk};

/// The default number of events. A small number suffices for counting instructions.
const EVENTS: u64 = 20_000_000;

fn main() {
    let events = std::env::args().nth(1);
    let events = events.map_or(EVENTS, |events| events.parse().expect("a number of events"));
    for functions in [60, 5000] {
        println!("{functions} functions:");
        let file = file(functions, events);
        analyse(
            events,
            &Trace::read(file.as_slice()).expect("what was written can be read"),
        );
    }
}

fn analyse(events: u64, trace: &Trace) {
    let report = |what: &str, work: &dyn Fn() -> u64| {
        // The best of five rounds: other programs may use the processor.
        let mut seconds = f64::INFINITY;
        let mut found = 0;
        for _ in 0..5 {
            let start = Instant::now();
            found = work();
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        println!(
            "  {what}: {:.1} million events/s ({found})",
            events as f64 / seconds / 1e6
        );
    };
    report("events", &|| {
        trace
            .blocks()
            .iter()
            .map(|block| block.events().count() as u64)
            .sum()
    });
    report("steps", &|| {
        Steps::of_threads(trace)
            .map(|mut steps| {
                let mut counter = Counter::default();
                steps.visit(&mut counter);
                counter.ended
            })
            .sum()
    });
    report("account", &|| {
        account(trace, &Filter::default(), AccountOptions::default())
            .rows
            .iter()
            .map(|row| row.calls)
            .sum()
    });
    report("graph", &|| {
        let graph = Graph::new(trace, &Filter::default(), Siblings::Closed);
        graph.edges.iter().map(|edge| edge.calls).sum()
    });
    report("stack", &|| {
        let mut stacks = StackTrie::default();
        let filter = Filter::default();
        stacks.add(
            trace,
            &filter,
            Siblings::Closed,
            StackRoots::Together,
            Side::Before,
        );
        stacks.nodes().len() as u64
    });
}

#[derive(Default)]
struct Counter {
    ended: u64,
}

// === impl Counter ===

impl Visitor for Counter {
    #[inline(always)]
    fn enter(&mut self, _: &Open) {}

    #[inline(always)]
    fn leave(&mut self, _: &Call) {
        self.ended += 1;
    }
}

/// The walk of one thread.
fn file(functions: u32, events: u64) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("memory can be written");
    let anchor = |ticks| ClockAnchor {
        ticks: Ticks(ticks),
        monotonic_ns: 1_000 + ticks * 10 / 26,
        wall_ns: 1_000 + ticks * 10 / 26,
    };
    writer.add(&anchor(0)).expect("memory can be written");
    let mut encoder = BlockEncoder::new(ThreadId(0));
    let program = Program {
        functions,
        depth: 13,
        strays: 5,
        choices: functions,
    };
    let mut last = 0;
    for call in Walk::new(program, events, 0) {
        last = call.ticks;
        encoder.push_call(Ticks(last), FunctionId(call.function), call.kind, None);
        if encoder.encoded_len() >= BlockEncoder::GOOD_LEN {
            let block = encoder.finish().expect("there are events");
            writer.block(&block).expect("memory can be written");
        }
    }
    if let Some(block) = encoder.finish() {
        writer.block(&block).expect("memory can be written");
    }
    writer.add(&anchor(last)).expect("memory can be written");
    writer.end(&writer.totals()).expect("memory can be written");
    writer.into_inner()
}
