//! Gates: bytes of a flavour that lead it another way, for all sleds at once and without a stop.
//! The ways themselves are in `filter.rs`, `count.rs` and `profile.rs`.
//!
//! A gate is one byte, so a store to it cannot tear, and a thread sees it before or after. A gate
//! costs nothing while it is off: its instruction is one that the flavour needs.
//!
//! ```text
//!  pad:       eb NN                 jmp over NN bytes of the ways below: a gate, too
//!             e9 rel32              to the filter
//!             e9 rel32              to counting
//!             e9 rel32              to adding up
//!             …
//!  flavour:   push …
//!             mov  %fs:…, %eax
//!             mov  $slots, %r11
//!             89 c1                 mov %eax, %ecx        on: eb c1, jmp to the pad
//!  resume:    and  …
//!
//!  adding up: …
//!             eb 00                 jmp over 0 bytes      on: eb 05, to recording as well
//!             e9 rel32              jmp to the end of the flavour
//!
//!             50                    push %rax             on: c3, ret
//!
//!             e9 rel32              jmp to the flavour for entries
//!  values:    a8 f9                 test $0xf9, %al       on: eb f9, jmp; flags are dead
//!                                                         disabled: c3, ret
//! ```
//!
//! The first instruction of each flavour can be replaced by `ret`, whatever the dispatch mode is.
//! Then nothing is recorded or counted, and a sled that is on costs a call.

use iced_x86::code_asm::{CodeAssembler, CodeLabel, eax, ecx};

use super::{Result, TrampolineSpec};

/// A task of all flavours beside recording.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum DispatchMode {
    /// No task: each event is recorded.
    #[default]
    None,
    /// Counting: entries are counted, and nothing is recorded.
    Count,
    /// Filtering: the table chooses the recorded events.
    Filter,
    /// Adding up: calls are added up by stack, and nothing is recorded.
    Profile,
    /// Adding up and recording: calls are added up by stack, and each event is recorded.
    ProfileAndRecord,
}

/// Whether flavours do anything.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Enable {
    /// They do the task of the dispatch mode.
    #[default]
    On,
    /// They do nothing.
    Off,
}

/// A byte that leads a flavour another way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Gate {
    /// The address of the byte.
    pub address: u64,
    /// Its value in [`DispatchMode::None`].
    pub off: u8,
    /// Its values for counting, filtering, adding up, and adding up and recording; the same as
    /// `off` where the gate has no part in them.
    on: [u8; 4],
    /// Its value while trampolines are disabled; `None` if it stays the same.
    closed: Option<u8>,
}

/// The instruction of a gate, `mov ecx, eax`. If a jump takes the place of the first byte, the
/// second one is its distance.
const MOVE: [u8; 2] = [0x89, 0xc1];
const JUMP_SHORT: u8 = 0xeb;
const RETURN: u8 = 0xc3;
/// Bytes from the end of the gate back to the target of its jump, as 0xc1 stands for.
const TO_PAD: usize = 63;
const PUSH_RAX: u8 = 0x50;
/// `test $imm, %al`, where the flags are dead.
const TEST: u8 = 0xa8;
/// `jmp rel32`.
const JUMP: u8 = 0xe9;
const WAY_BYTES: u8 = 5;
/// The distance of a short jump backwards over itself and one way.
const SKIP: u8 = (-(2 + 5_i8)).cast_unsigned();
/// The place in the pad of the byte that chooses the way.
const CHOICE_AT: u64 = 1;

/// A pad that was placed, with the gate that leads to it.
#[derive(Debug, Clone, Copy)]
pub(super) struct JumpPad {
    pad: CodeLabel,
    gate: CodeLabel,
    /// The place behind the gate.
    pub(super) resume: CodeLabel,
}

/// The starts of a pad's ways, once they are assembled.
#[derive(Debug, Clone, Copy)]
pub(super) struct Ways {
    pub(super) filter: CodeLabel,
    /// `None` for a flavour that has nothing to count.
    pub(super) count: Option<CodeLabel>,
    /// `None` for a flavour that has nothing to add up.
    pub(super) profile: Option<ProfileWay>,
}

/// The way to adding up.
#[derive(Debug, Clone, Copy)]
pub(super) struct ProfileWay {
    pub(super) start: CodeLabel,
    /// The code of [`emit_end_of_adding_up`].
    pub(super) end: CodeLabel,
}

// === impl DispatchMode ===

impl DispatchMode {
    /// True if calls are added up.
    pub const fn adds_up(self) -> bool {
        matches!(self, Self::Profile | Self::ProfileAndRecord)
    }
}

// === impl Gate ===

impl Gate {
    /// Its value in this dispatch mode, enabled or disabled.
    pub const fn byte(&self, dispatch_mode: DispatchMode, enable: Enable) -> u8 {
        match (enable, self.closed, dispatch_mode) {
            (Enable::Off, Some(closed), _) => closed,
            (_, _, DispatchMode::None) => self.off,
            (_, _, DispatchMode::Count) => self.on[0],
            (_, _, DispatchMode::Filter) => self.on[1],
            (_, _, DispatchMode::Profile) => self.on[2],
            (_, _, DispatchMode::ProfileAndRecord) => self.on[3],
        }
    }

    /// True if it is one of the gates that disable trampolines.
    pub const fn is_enable(&self) -> bool {
        self.closed.is_some()
    }

    /// The same gate in code that stands so much higher.
    pub(super) fn moved_by(self, distance: u64) -> Self {
        Self {
            address: self.address + distance,
            ..self
        }
    }

    fn new(address: u64, off: u8, on: [Option<u8>; 4]) -> Self {
        let on = on.map(|on| on.unwrap_or(off));
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
        Self::new(start, PUSH_RAX, [None; 4]).or_closed()
    }

    /// The first byte of a flavour that has nothing to count, and begins with `push rax`.
    pub(super) fn to_return(start: u64) -> Self {
        Self::new(start, PUSH_RAX, [Some(RETURN), None, None, None]).or_closed()
    }

    /// The first byte of a flavour that has nothing to count or to add up, and begins with `push
    /// rax`.
    pub(super) fn to_return_always(start: u64) -> Self {
        Self::new(start, PUSH_RAX, [Some(RETURN), None, Some(RETURN), None]).or_closed()
    }

    /// The first byte of the code of [`emit_skipped`].
    pub(super) fn to_skip(start: u64) -> Self {
        let jump = Some(JUMP_SHORT);
        Self::new(start, TEST, [jump, None, jump, jump]).or_closed()
    }

    /// The second byte of the jump of [`emit_end_of_adding_up`].
    pub(super) fn to_record(at: u64) -> Self {
        Self::new(at, 0, [None, None, None, Some(WAY_BYTES)])
    }
}

// === impl JumpPad ===

impl JumpPad {
    /// Writes the pad's ways into the assembled code, and returns its gates. `done` is the end of
    /// the flavour. Gates that choose among ways are first, since they choose before a thread comes
    /// to them.
    pub(super) fn finish(
        &self,
        code: &mut [u8],
        origin: u64,
        (ways, done): (Ways, CodeLabel),
        at: impl Fn(&CodeLabel) -> Result<u64>,
    ) -> Result<Vec<Gate>> {
        let pad = at(&self.pad)?;
        let profile = ways.profile.map(|way| way.start);
        let targets = [Some(ways.filter), ways.count, profile];
        let jump = |code: &mut [u8], end: u64, target: u64| {
            let distance = target.wrapping_sub(end).cast_signed();
            let distance = i32::try_from(distance).expect("trampolines fit some pages");
            let place = usize::try_from(end - 4 - origin).expect("it lies in the code");
            code[place..place + 4].copy_from_slice(&distance.to_le_bytes());
        };
        for (number, target) in (0..).zip(targets) {
            if let Some(target) = target {
                let end = pad + CHOICE_AT + 1 + u64::from(WAY_BYTES) * (number + 1);
                jump(code, end, at(&target)?);
            }
        }
        let mut gates = Vec::new();
        if let Some(way) = ways.profile {
            let choice = at(&way.end)? + CHOICE_AT;
            jump(code, choice + 1 + u64::from(WAY_BYTES), at(&done)?);
            gates.push(Gate::to_record(choice));
        }
        let gate = at(&self.gate)?;
        let place = usize::try_from(gate - origin).expect("it lies in the code");
        assert_eq!(code[place..place + 2], MOVE, "the gate's instruction");
        assert_eq!(gate + 2 - TO_PAD as u64, pad, "where its jump leads");
        let to = [ways.count, Some(ways.filter), profile, profile];
        let jumps = to.map(|way| way.map(|_| JUMP_SHORT));
        let to_profile = ways.profile.map(|_| 2 * WAY_BYTES);
        let choices = [ways.count.map(|_| WAY_BYTES), None, to_profile, to_profile];
        gates.push(Gate::new(pad + CHOICE_AT, 0, choices));
        gates.push(Gate::new(gate, MOVE[0], jumps));
        Ok(gates)
    }
}

/// Room for a pad. Its gate stands `to_gate` bytes behind the start of the next cache line, where
/// the flavour begins.
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
    for _ in 0..3 {
        a.db(&[JUMP, 0, 0, 0, 0])?;
    }
    super::align(a, spec)?;
    Ok(pad)
}

/// Emits the instruction that the gate is part of.
pub(super) fn emit_gate(a: &mut CodeAssembler, pad: CodeLabel) -> Result<JumpPad> {
    let (mut gate, mut resume) = (a.create_label(), a.create_label());
    a.set_label(&mut gate)?;
    a.mov(ecx, eax)?;
    a.set_label(&mut resume)?;
    Ok(JumpPad { pad, gate, resume })
}

/// Emits the end of the way to adding up: a jump to the end of the flavour. Its gate leads behind
/// that jump, to what records the event.
pub(super) fn emit_end_of_adding_up(a: &mut CodeAssembler) -> Result<CodeLabel> {
    let mut end = a.create_label();
    a.set_label(&mut end)?;
    a.db(&[JUMP_SHORT, 0])?;
    a.db(&[JUMP, 0, 0, 0, 0])?;
    Ok(end)
}

/// Emits a cache line that ends with a jump to `way`. The gate that leads to it is at the start of
/// the next line.
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

/// Emits the instruction of that gate, which is the flavour's first.
pub(super) fn emit_skipped(a: &mut CodeAssembler) -> Result<()> {
    a.db(&[TEST, SKIP])
}
