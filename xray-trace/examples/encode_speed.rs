//! Measures the speed of packing and unpacking events, and the size of the packed events. Run it
//! with `--release`.

#![expect(clippy::print_stdout, reason = "its output is its purpose")]

mod walk;

use std::hint::black_box;
use std::time::{Duration, Instant};

use xray_trace::container::{Block, BlockEncoder};
use xray_trace::model::{CallKind, FunctionId, ThreadId, Ticks};

use self::walk::{Program, Walk};

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

/// The calls of a program. `strays` percent of them go to a random function.
fn program(functions: u32, strays: u32) -> Vec<Call> {
    let program = Program {
        functions,
        depth: 13,
        strays,
        choices: functions,
    };
    let calls = Walk::new(program, EVENTS as u64, 0);
    calls
        .map(|call| (call.ticks, FunctionId(call.function), call.kind))
        .collect()
}
