//! What a synthetic program does: a random walk over a call graph, the same in every run.
//!
//! A function calls the same few others in order; a few percent of the calls go somewhere else.

use xray_trace::model::CallKind;

/// What kind of program it is.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Program {
    /// How many functions it has.
    pub(crate) functions: u32,
    /// How deep calls nest.
    pub(crate) depth: usize,
    /// How many percent of the calls go somewhere else.
    pub(crate) strays: u32,
    /// Of how many functions a call that goes somewhere else chooses one. Few keep the number of distinct stacks small.
    pub(crate) choices: u32,
}

/// An entry or an exit.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Call {
    /// When, in ticks.
    pub(crate) ticks: u64,
    /// Of which function, from 0.
    pub(crate) function: u32,
    pub(crate) kind: CallKind,
}

/// The events of one thread. In the end every call has returned.
#[derive(Debug)]
pub(crate) struct Walk {
    program: Program,
    random: Random,
    /// The functions under way, each with the number of its calls so far.
    stack: Vec<(u32, u32)>,
    ticks: u64,
    /// Events still to come.
    left: u64,
}

#[derive(Debug)]
struct Random(u64);

// === impl Walk ===

impl Walk {
    /// An even number of `events`, from time 0; the first walk, the second and so on differ.
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
