//! Gates: bytes of a flavour by which it is led another way, for all sleds at once and without a stop.
//!
//! A gate is one byte, so a store to it cannot tear, and a thread sees it before or after. It costs nothing while it is off: the instruction that it is
//! part of is one that the flavour needs.
//!
//! ```text
//!  pad:       eb NN                 jmp over so many of the ways below: a gate, too
//!             e9 rel32              to the filter
//!             e9 rel32              to counting
//!             …
//!  flavour:   push …
//!             mov  %fs:…, %eax
//!             mov  $slots, %r11
//!             89 c1                 mov %eax, %ecx        on: eb c1, jmp to the pad
//!  resume:    and  …
//!
//!             50                    push %rax             on: c3, ret
//!
//!             e9 rel32              jmp to the flavour for entries
//!  values:    a8 f9                 test $0xf9, %al       on: eb f9, jmp to there; flags are dead. Closed: c3, ret
//! ```
//!
//! What all flavours begin with can be a `ret` instead, whatever front there is: then nothing is recorded nor counted, and a sled that is on costs a call.

use iced_x86::code_asm::{CodeAssembler, CodeLabel, eax, ecx};

use super::{Result, TrampolineSpec};

/// What all flavours do, beside what they do by themselves.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Front {
    /// Nothing: each event is recorded.
    #[default]
    None,
    /// Entries are counted, and nothing is recorded.
    Count,
    /// What is recorded is chosen, as the table says.
    Filter,
}

/// Whether flavours do anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Door {
    /// What the front says.
    #[default]
    Open,
    /// Nothing.
    Closed,
}

/// A byte by which a flavour is led another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// Where it stands.
    pub address: u64,
    /// What stands there while there is no front.
    pub off: u8,
    /// What stands there while there is this one; the same as `off` where it has no part in that.
    on: [u8; 2],
    /// What stands there while the door is closed; `None` where that changes nothing.
    closed: Option<u8>,
}

/// The instruction of a gate, `mov ecx, eax`: its second byte is how far a jump goes that takes the place of the first.
const MOVE: [u8; 2] = [0x89, 0xc1];
const JUMP_SHORT: u8 = 0xeb;
const RETURN: u8 = 0xc3;
/// Bytes from the gate's end back to where its jump leads: what 0xc1 means to that.
const TO_PAD: usize = 63;
const PUSH_RAX: u8 = 0x50;
/// `test $imm, %al`, where the flags are dead.
const TEST: u8 = 0xa8;
/// `jmp rel32`.
const JUMP: u8 = 0xe9;
const WAY_BYTES: u8 = 5;
/// A short jump over itself and one way, backwards.
const SKIP: u8 = (-(2 + 5_i8)).cast_unsigned();
/// Where the byte stands in the pad that chooses the way.
const CHOICE_AT: u64 = 1;

/// A pad that was placed, with the gate that leads to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Pad {
    pad: CodeLabel,
    gate: CodeLabel,
    /// Behind the gate.
    pub(super) resume: CodeLabel,
}

/// Where a pad's ways begin, once they are assembled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    pub(super) filter: CodeLabel,
    /// `None` of a flavour that has nothing to count.
    pub(super) count: Option<CodeLabel>,
}

// === impl Gate ===

impl Gate {
    /// What stands there while there is that front, and the door is so.
    pub const fn byte(&self, front: Front, door: Door) -> u8 {
        match (door, self.closed, front) {
            (Door::Closed, Some(closed), _) => closed,
            (_, _, Front::None) => self.off,
            (_, _, Front::Count) => self.on[0],
            (_, _, Front::Filter) => self.on[1],
        }
    }

    /// Whether it is one of those that close the door.
    pub const fn is_door(&self) -> bool {
        self.closed.is_some()
    }

    fn new(address: u64, off: u8, count: Option<u8>, filter: Option<u8>) -> Self {
        let on = [count, filter].map(|on| on.unwrap_or(off));
        Self {
            address,
            off,
            on,
            closed: None,
        }
    }

    fn or_closed(self) -> Self {
        Self {
            closed: Some(RETURN),
            ..self
        }
    }

    /// The first byte of a flavour that counts, and begins with `push rax`.
    pub(super) fn to_close(start: u64) -> Self {
        Self::new(start, PUSH_RAX, None, None).or_closed()
    }

    /// The first byte of a flavour that has nothing to count, and begins with `push rax`.
    pub(super) fn to_return(start: u64) -> Self {
        Self::new(start, PUSH_RAX, Some(RETURN), None).or_closed()
    }

    /// The first byte of what [`emit_skipped`] has made.
    pub(super) fn to_skip(start: u64) -> Self {
        Self::new(start, TEST, Some(JUMP_SHORT), None).or_closed()
    }
}

// === impl Pad ===

impl Pad {
    /// Writes the pad's ways into the assembled code, and says which gates there are: those of the pad first, since they choose before they are met.
    pub(super) fn finish(
        &self,
        code: &mut [u8],
        origin: u64,
        ways: Ways,
        at: impl Fn(&CodeLabel) -> Result<u64>,
    ) -> Result<Vec<Gate>> {
        let pad = at(&self.pad)?;
        let targets = [Some(ways.filter), ways.count];
        for (number, target) in (0..).zip(targets.into_iter().flatten()) {
            let end = pad + CHOICE_AT + 1 + u64::from(WAY_BYTES) * (number + 1);
            let distance = at(&target)?.wrapping_sub(end).cast_signed();
            let distance = i32::try_from(distance).expect("trampolines fit some pages");
            let place = usize::try_from(end - 4 - origin).expect("it lies in the code");
            code[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        }
        let gate = at(&self.gate)?;
        let place = usize::try_from(gate - origin).expect("it lies in the code");
        assert_eq!(code[place..place + 2], MOVE, "the gate's instruction");
        assert_eq!(gate + 2 - TO_PAD as u64, pad, "where its jump leads");
        let counts = ways.count.is_some();
        let count = counts.then_some(JUMP_SHORT);
        let choice = counts.then_some(WAY_BYTES);
        Ok(vec![
            Gate::new(pad + CHOICE_AT, 0, choice, None),
            Gate::new(gate, MOVE[0], count, Some(JUMP_SHORT)),
        ])
    }
}

/// Room for a pad, whose gate stands so many bytes behind the next cache line's begin, where the flavour begins.
pub(super) fn emit_pad(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    to_gate: usize,
) -> Result<CodeLabel> {
    let mut pad = a.create_label();
    super::align(a, spec)?;
    for _ in 0..64 + to_gate + MOVE.len() - TO_PAD {
        a.int3()?;
    }
    a.set_label(&mut pad)?;
    a.db(&[JUMP_SHORT, 0])?;
    for _ in 0..2 {
        a.db(&[JUMP, 0, 0, 0, 0])?;
    }
    super::align(a, spec)?;
    Ok(pad)
}

/// The instruction that the gate is part of.
pub(super) fn emit_gate(a: &mut CodeAssembler, pad: CodeLabel) -> Result<Pad> {
    let (mut gate, mut resume) = (a.create_label(), a.create_label());
    a.set_label(&mut gate)?;
    a.mov(ecx, eax)?;
    a.set_label(&mut resume)?;
    Ok(Pad { pad, gate, resume })
}

/// A cache line that ends with a jump to `way`; then, where the next one begins, the gate that leads to it.
pub(super) fn emit_skip(
    a: &mut CodeAssembler,
    spec: &TrampolineSpec,
    way: CodeLabel,
) -> Result<()> {
    super::align(a, spec)?;
    for _ in usize::from(WAY_BYTES)..64 {
        a.int3()?;
    }
    // Too far for a short one.
    a.jmp(way)?;
    Ok(())
}

/// The instruction of that gate, which is the flavour's first.
pub(super) fn emit_skipped(a: &mut CodeAssembler) -> Result<()> {
    a.db(&[TEST, SKIP])
}
