//! Measures how fast a trace is analysed, on one core. Run it with `--release`.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::time::Instant;

use xray_trace::analysis::{AccountOptions, Filter, Steps, account};
use xray_trace::container::{BlockEncoder, Writer};
use xray_trace::model::{CallKind, ClockAnchor, FunctionId, ThreadId, Ticks, Trace};

const EVENTS: u64 = 20_000_000;

fn main() {
    for functions in [60, 5000] {
        println!("{functions} functions:");
        let file = file(functions);
        analyse(&Trace::read(file.as_slice()).expect("what was written can be read"));
    }
}

fn analyse(trace: &Trace) {
    let report = |what: &str, work: &dyn Fn() -> u64| {
        // The best of several rounds: other programs may be at work.
        let mut seconds = f64::INFINITY;
        let mut found = 0;
        for _ in 0..5 {
            let start = Instant::now();
            found = work();
            seconds = seconds.min(start.elapsed().as_secs_f64());
        }
        println!(
            "  {what}: {:.1} million events/s ({found})",
            EVENTS as f64 / seconds / 1e6
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
            .map(|steps| steps.count() as u64)
            .sum()
    });
    report("account", &|| {
        account(trace, &Filter::default(), AccountOptions::default())
            .rows
            .iter()
            .map(|row| row.calls)
            .sum()
    });
}

/// A random walk over a call graph in one thread: each function calls the same few others in order; a few percent of the
/// calls go somewhere else.
fn file(functions: u32) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("memory can be written");
    let anchor = |ticks| ClockAnchor {
        ticks: Ticks(ticks),
        monotonic_ns: 1_000 + ticks * 10 / 26,
        wall_ns: 1_000 + ticks * 10 / 26,
    };
    writer.anchor(&anchor(0)).expect("memory can be written");
    let mut encoder = BlockEncoder::new(ThreadId(0));
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut stack: Vec<(u32, u32)> = Vec::new();
    let mut ticks = 0;
    for _ in 0..EVENTS {
        ticks += u64::from(30 + random.below(400));
        let step = stack.last().map_or((0, 0), |frame| *frame);
        let full = stack.len() > 12 || step.1 > step.0 % 4;
        if !stack.is_empty() && full {
            stack.pop();
            encoder.push_call(Ticks(ticks), FunctionId(step.0), CallKind::Exit, None);
        } else {
            let odd = random.below(100) < 5;
            let salt = if odd { random.below(functions) } else { step.1 };
            let callee = (step.0.wrapping_mul(31) + salt * 7 + 1) % functions;
            if let Some(frame) = stack.last_mut() {
                frame.1 += 1;
            }
            stack.push((callee, 0));
            encoder.push_call(Ticks(ticks), FunctionId(callee), CallKind::Enter, None);
        }
        if encoder.encoded_len() >= BlockEncoder::GOOD_LEN {
            let block = encoder.finish().expect("there are events");
            writer.block(&block).expect("memory can be written");
        }
    }
    if let Some(block) = encoder.finish() {
        writer.block(&block).expect("memory can be written");
    }
    writer
        .anchor(&anchor(ticks))
        .expect("memory can be written");
    writer.end(&writer.totals()).expect("memory can be written");
    writer.into_inner()
}

struct Random(u64);

// === impl Random ===

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 % u64::from(limit)).unwrap_or(0)
    }
}
