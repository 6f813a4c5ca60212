//! Traces with calls that the test knows exactly.

use std::fs::File;
use std::io::BufWriter;
use std::path::Path;

use anyhow::Result;
use xray_trace::FileAddr;
use xray_trace::container::{BlockEncoder, RunsEncoder, Writer};
use xray_trace::model::{
    CallKind, ClockAnchor, ContextSwitch, Function, FunctionId, Module, ModuleId, Process,
    ProcessId, RunState, Thread, ThreadId, Ticks, Values,
};

/// A name that is markup, for code that does not escape it.
pub(crate) const HOSTILE: &str = "</script><img src=x onerror=document.title=1>";

/// Functions of a [`small`] trace. The first makes the outermost calls.
pub(crate) const NAMES: [&str; 4] = [
    "app::serve(int)",
    "app::parse(char const*)",
    "app::store()",
    HOSTILE,
];

/// Calls of `serve` in each thread of a small trace.
pub(crate) const ROUNDS: u64 = 40;

/// A trace that is being written. A tick is a nanosecond.
struct Run {
    writer: Writer<BufWriter<File>>,
    encoders: Vec<BlockEncoder>,
}

impl Run {
    fn new(path: &Path, names: impl Iterator<Item = String>, threads: u32) -> Result<Self> {
        let mut writer = Writer::new(BufWriter::new(File::create(path)?))?;
        writer.add(&Process {
            id: ProcessId(0),
            pid: 4000,
            start_time_ticks: 1,
            command: "app".to_owned(),
            executable: "/usr/bin/app".to_owned(),
            host: None,
        })?;
        writer.add(&Module {
            id: ModuleId(0),
            process: ProcessId(0),
            path: "/usr/bin/app".to_owned(),
            build_id: None,
            load_bias: 0,
            event_formats: Vec::new(),
        })?;
        for (id, name) in (0..).zip(names) {
            writer.add(&Function {
                id: FunctionId(id),
                module: ModuleId(0),
                xray_id: id + 1,
                address: FileAddr(0x1000 + u64::from(id) * 64),
                symbol: None,
                name,
                source: None,
                sleds: 2,
            })?;
        }
        for id in 0..threads {
            writer.add(&Thread {
                id: ThreadId(id),
                process: ProcessId(0),
                tid: 4000 + id,
                name: format!("worker-{id}"),
            })?;
        }
        writer.add(&anchor(0))?;
        let encoders = (0..threads)
            .map(|id| BlockEncoder::new(ThreadId(id)))
            .collect();
        Ok(Self { writer, encoders })
    }

    fn call(&mut self, thread: usize, ns: u64, function: u32, kind: CallKind) -> Result<()> {
        let encoder = &mut self.encoders[thread];
        encoder.push_call(Ticks(ns), FunctionId(function), kind, Values::NONE);
        if encoder.encoded_len() >= BlockEncoder::GOOD_LEN {
            self.put(thread)?;
        }
        Ok(())
    }

    fn put(&mut self, thread: usize) -> Result<()> {
        if let Some(block) = self.encoders[thread].finish() {
            self.writer.block(&block)?;
        }
        Ok(())
    }

    fn finish(mut self, ns: u64) -> Result<()> {
        for thread in 0..self.encoders.len() {
            self.put(thread)?;
        }
        self.writer.add(&anchor(ns))?;
        let totals = self.writer.totals();
        self.writer.end(&totals)?;
        self.writer.flush()?;
        Ok(())
    }
}

fn anchor(ns: u64) -> ClockAnchor {
    ClockAnchor {
        ticks: Ticks(ns),
        monotonic_ns: ns,
        wall_ns: 1_700_000_000_000_000_000 + ns,
    }
}

/// Two threads. `serve` takes 100 µs, 25 of them in `parse` and 50 in `store`, of which 10 are in
/// the function with the hostile name. The second thread loses events after the last round, which
/// leaves a call of `parse` without its exit.
pub(crate) fn small(path: &Path) -> Result<()> {
    use CallKind::{Enter, Exit};
    const ROUND: u64 = 150_000;
    let mut run = Run::new(path, NAMES.map(str::to_owned).into_iter(), 2)?;
    for thread in 0..2 {
        for round in 0..ROUNDS {
            let begin = 1_000 + round * ROUND;
            for (at, function, kind) in [
                (0, 0, Enter),
                (5_000, 1, Enter),
                (30_000, 1, Exit),
                (40_000, 2, Enter),
                (60_000, 3, Enter),
                (70_000, 3, Exit),
                (90_000, 2, Exit),
                (100_000, 0, Exit),
            ] {
                run.call(thread, begin + at, function, kind)?;
            }
        }
    }
    let end = 1_000 + ROUNDS * ROUND;
    run.call(1, end, 1, Enter)?;
    run.encoders[1].push_lost(Ticks(end + 200_000), 17);
    run.call(1, end + 300_000, 3, Enter)?;
    run.call(1, end + 301_000, 3, Exit)?;
    run.finish(end + 400_000)
}

/// One thread with run times until 3.5 ms. Calls of `serve` begin at 0, 2 and 4 ms, and take 1 ms.
/// In each is a call of `parse`, which begins 100 µs later and takes 800 µs. In the first, the
/// thread is ready to run from 200 to 300 µs, and waits from 400 to 800 µs. In the second, it waits
/// for 100 ns every 200 ns, for 600 µs.
pub(crate) fn scheduled(path: &Path) -> Result<()> {
    use CallKind::{Enter, Exit};
    let mut run = Run::new(path, NAMES.map(str::to_owned).into_iter(), 1)?;
    for begin in [0, 2_000_000, 4_000_000] {
        for (at, function, kind) in [
            (0, 0, Enter),
            (100_000, 1, Enter),
            (900_000, 1, Exit),
            (1_000_000, 0, Exit),
        ] {
            run.call(0, begin + at, function, kind)?;
        }
    }
    let mut runs = RunsEncoder::new(0);
    let mut push = |at_ns, to| {
        runs.push(ContextSwitch {
            at_ns,
            to,
            processor: 0,
        });
    };
    for (at_ns, to) in [
        (200_000, RunState::Ready),
        (300_000, RunState::Running),
        (400_000, RunState::Waiting),
        (800_000, RunState::Running),
    ] {
        push(at_ns, to);
    }
    for at_ns in (2_200_000..2_800_000).step_by(200) {
        push(at_ns, RunState::Waiting);
        push(at_ns + 100, RunState::Running);
    }
    run.writer.runs(&runs.take(ThreadId(0), 3_500_000))?;
    run.finish(5_000_000)
}

/// One thread with 40 calls within each other. In them, it waits `waits` times, every 400 ns, each
/// time for 100 to 199 ns.
pub(crate) fn waiting(path: &Path, waits: u64) -> Result<()> {
    const DEPTH: u32 = 40;
    let names = (0..DEPTH).map(|depth| format!("level_{depth}"));
    let mut run = Run::new(path, names, 1)?;
    let end = waits * 400 + 200;
    for depth in 0..DEPTH {
        run.call(0, depth.into(), depth, CallKind::Enter)?;
    }
    for depth in (0..DEPTH).rev() {
        run.call(0, end - u64::from(depth), depth, CallKind::Exit)?;
    }
    let mut runs = RunsEncoder::new(0);
    for wait in 0..waits {
        let at_ns = 100 + wait * 400;
        for (at_ns, to) in [
            (at_ns, RunState::Waiting),
            (at_ns + 100 + wait % 100, RunState::Running),
        ] {
            runs.push(ContextSwitch {
                at_ns,
                to,
                processor: 0,
            });
        }
    }
    run.writer.runs(&runs.take(ThreadId(0), end))?;
    run.finish(end)
}

/// Four threads with the same number of events. The calls of 300 functions take a few nanoseconds
/// to a few milliseconds, and are up to 12 deep.
pub(crate) fn large(path: &Path, events: u64) -> Result<()> {
    const FUNCTIONS: u32 = 300;
    const THREADS: u32 = 4;
    let names = (0..FUNCTIONS).map(|id| format!("service::part_{}::function_{id}(int)", id % 17));
    let mut run = Run::new(path, names, THREADS)?;
    let mut state = 1_u64;
    let mut random = move |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    let mut last = 0;
    for thread in 0..THREADS as usize {
        let (mut now, mut open) = (1_000, Vec::new());
        for left in (0..events / u64::from(THREADS)).rev() {
            let longest = 1 << random(9);
            now += 5 + random(longest);
            let depth = open.len() as u64;
            // All open calls are closed in the end.
            if depth < left && depth < 12 && (depth == 0 || random(12 + depth) > 5 + depth / 2) {
                let function = u32::try_from(random(20) + 20 * depth)? % FUNCTIONS;
                run.call(thread, now, function, CallKind::Enter)?;
                open.push(function);
            } else if let Some(function) = open.pop() {
                run.call(thread, now, function, CallKind::Exit)?;
            }
        }
        last = last.max(now);
    }
    run.finish(last + 1_000)
}
