//! Measures how fast events are packed and unpacked, and how many bytes they take. Run it with `--release`.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

use std::hint::black_box;
use std::time::{Duration, Instant};

use xray_trace::container::{Block, BlockEncoder};
use xray_trace::model::{CallKind, FunctionId, ThreadId, Ticks};

const EVENTS: usize = 20_000_000;

type Call = (u64, FunctionId, CallKind);

fn main() {
    report("one leaf, called again and again", &leaf());
    report("a deterministic program of 60 functions", &program(60, 0));
    report(
        "a program of 5000 functions with data-dependent branches",
        &program(5000, 30),
    );
}

fn report(name: &str, calls: &[Call]) {
    let (blocks, packing) = pack(calls);
    let bytes: usize = blocks.iter().map(Block::encoded_len).sum();
    let start = Instant::now();
    let unpacked = blocks
        .iter()
        .flat_map(Block::events)
        .filter(|event| black_box(event).is_ok());
    let unpacked = unpacked.count();
    let unpacking = start.elapsed();
    assert_eq!(unpacked, calls.len(), "every event comes back");
    let ns = |time: Duration| time.as_secs_f64() * 1e9 / calls.len() as f64;
    println!(
        "{name}: {:.2} ns/event packing, {:.2} ns/event unpacking, {:.2} bytes/event",
        ns(packing),
        ns(unpacking),
        bytes as f64 / calls.len() as f64
    );
}

fn pack(calls: &[Call]) -> (Vec<Block>, Duration) {
    let mut encoder = BlockEncoder::new(ThreadId(0));
    let mut blocks = Vec::new();
    let start = Instant::now();
    for &(ticks, function, kind) in calls {
        encoder.push_call(Ticks(ticks), function, kind, None);
        if encoder.encoded_len() >= BlockEncoder::GOOD_LEN {
            blocks.extend(encoder.finish());
        }
    }
    blocks.extend(encoder.finish());
    (blocks, start.elapsed())
}

fn leaf() -> Vec<Call> {
    let kinds = [CallKind::Enter, CallKind::Exit].into_iter().cycle();
    kinds
        .zip(0..EVENTS as u64)
        .map(|(kind, at)| (at * 25, FunctionId(7), kind))
        .collect()
}

/// A random walk over a call graph: each function calls the same few others in order; `chance` percent of the calls
/// go somewhere else.
fn program(functions: u32, chance: u32) -> Vec<Call> {
    let mut random = Random(0x1234_5678_9abc_def1);
    let mut calls = Vec::with_capacity(EVENTS + 64);
    let mut stack: Vec<(u32, u32)> = Vec::new();
    let mut ticks = 0;
    while calls.len() < EVENTS {
        ticks += u64::from(30 + random.below(400));
        let step = stack.last().map_or((0, 0), |frame| *frame);
        let depth = u32::try_from(stack.len()).unwrap_or(u32::MAX);
        if depth > 0 && (depth > 12 || step.1 > step.0 % 4) {
            stack.pop();
            calls.push((ticks, FunctionId(step.0), CallKind::Exit));
        } else {
            let odd = random.below(100) < chance;
            let salt = if odd { random.below(functions) } else { step.1 };
            let callee = (step.0.wrapping_mul(31) + salt * 7 + 1) % functions;
            if let Some(frame) = stack.last_mut() {
                frame.1 += 1;
            }
            stack.push((callee, 0));
            calls.push((ticks, FunctionId(callee), CallKind::Enter));
        }
    }
    calls
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
