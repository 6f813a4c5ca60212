//! The calls of a synthetic program: a random walk over a call graph, the same in every run.
//!
//! A function calls the same callees in order; a given share of the calls goes elsewhere.

use xray_trace::model::CallKind;

/// The parameters of a program.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// The number of functions.
    pub(crate) functions: u32,
    /// The greatest depth of calls.
    pub(crate) depth: usize,
    /// The percentage of calls that go elsewhere.
    pub(crate) strays: u32,
    /// The number of functions among which such a call chooses. A small number limits the number of
    /// distinct stacks.
    pub(crate) choices: u32,
}

/// An entry or an exit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// The time in ticks.
    pub(crate) ticks: u64,
    /// The function, from 0.
    pub(crate) function: u32,
    pub(crate) kind: CallKind,
}

/// The events of one thread. At the end every call has returned.
#[derive(Debug)]
pub(crate) struct Walk {
    program: Program,
    random: Random,
    /// The functions in progress, each with the number of its calls so far.
    stack: Vec<(u32, u32)>,
    ticks: u64,
    /// The number of events still to come.
    left: u64,
}

#[derive(Debug)]
struct Random(u64);

// === impl Walk ===

impl Walk {
    /// A walk of `events` events, an even number, from time 0. Walks with different numbers differ.
    pub(crate) fn new(program: Program, events: u64, number: u64) -> Self {
        let seed = 0x1234_5678_9abc_def1_u64.rotate_left(u32::try_from(number % 64).unwrap_or(0));
        Self {
            program,
            random: Random(seed),
            stack: Vec::new(),
            ticks: 0,
            left: events,
        }
    }
}

impl Iterator for Walk {
    type Item = Call;

    fn next(&mut self) -> Option<Call> {
        self.left = self.left.checked_sub(1)?;
        self.ticks += u64::from(30 + self.random.below(400));
        let ticks = self.ticks;
        let (caller, calls) = self.stack.last().copied().unwrap_or_default();
        let depth = self.stack.len();
        let done = depth >= self.program.depth || calls > caller % 4;
        let late = depth as u64 > self.left;
        if depth > 0 && (done || late) {
            self.stack.pop();
            return Some(Call {
                ticks,
                function: caller,
                kind: CallKind::Exit,
            });
        }
        let stray = self.random.below(100) < self.program.strays;
        let which = if stray {
            self.random.below(self.program.choices)
        } else {
            calls
        };
        let function = (caller.wrapping_mul(31) + which * 7 + 1) % self.program.functions;
        if let Some((_, calls)) = self.stack.last_mut() {
            *calls += 1;
        }
        self.stack.push((function, 0));
        Some(Call {
            ticks,
            function,
            kind: CallKind::Enter,
        })
    }
}

// === impl Random ===

impl Random {
    fn below(&mut self, limit: u32) -> u32 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        u32::try_from(self.0 % u64::from(limit)).unwrap_or(0)
    }
}
