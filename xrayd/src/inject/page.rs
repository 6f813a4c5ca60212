//! Writes the sleds of one page. The choice of sleds is made in `patch/`.
//!
//! Each piece is a write of its own, because another tracer may write to the bytes between two
//! pieces at any time. These writes are nearly the whole cost of a toggle.

use std::{io, ops::Range};

use sled_encoders::{
    SledKind,
    x86_64::{Staging, sled_bytes, switch},
};

use super::{patch_report::PatchReport, private_pages::PrivatePages};
use crate::{
    pid::{Pid, TargetAddr},
    refusal::{Reason, Refusal, Result},
    sys::Memory,
    types::Switch,
};

/// A sled that is to be written. Positions are relative to the bytes that were read.
#[derive(Debug)]
pub(super) struct Change {
    /// The sled.
    sled: Range<usize>,
    /// The bytes of its body that are written, if any.
    body: Option<Range<usize>>,
    /// True if it was staged to record something else before.
    pub(super) restaged: bool,
    /// The byte that switches it, and the value that it gets.
    byte: (usize, u8),
    /// The value of that byte when the sled is off.
    off: u8,
}

/// Writes sleds of one page at a time.
#[derive(Debug)]
pub(super) struct PageWriter<'a> {
    pub(super) pid: Pid,
    pub(super) memory: &'a Memory,
    /// The pages that become private to the target by the writes.
    pub(super) private: &'a mut PrivatePages,
}

// === impl Change ===

impl Change {
    /// Switches the sled of `kind` at `at` in `text`. A new body is put into `text`.
    pub(super) fn new(
        kind: SledKind,
        at: usize,
        body: Option<&Staging>,
        to: Switch,
        text: &mut [u8],
    ) -> Self {
        let byte = switch(kind);
        let value = match to {
            Switch::On => byte.on,
            Switch::Off => byte.off,
        };
        Self {
            sled: at..at + sled_bytes(kind),
            body: body.map(|staging| put(staging, at, text)),
            restaged: false,
            byte: (at + usize::from(byte.offset), value),
            off: byte.off,
        }
    }
}

// === impl PageWriter ===

impl PageWriter<'_> {
    /// Writes `changes`, ordered by address, to sleds that stand in `text` with their new bodies.
    /// `text` was read at `start`.
    pub(super) fn write_changes(
        &mut self,
        start: u64,
        text: &mut [u8],
        mut changes: Vec<Change>,
        done: &mut PatchReport,
    ) -> Result<()> {
        // Bodies first: a sled is never on with half a body. Another tracer that writes a whole
        // word may restore old bytes, so the bodies are read back before they are used.
        let bodies: Vec<Range<usize>> = changes
            .iter()
            .filter_map(|change| change.body.clone())
            .collect();
        self.write(start, text, &bodies)?;
        if !bodies.is_empty() {
            self.drop_foreign(start, text, &mut changes, done)?;
        }
        let mut bytes = Vec::new();
        for change in &changes {
            let (at, value) = change.byte;
            if let Some(byte) = text.get_mut(at)
                && *byte != value
            {
                *byte = value;
                bytes.push(at..at + 1);
            }
        }
        self.write(start, text, &bytes)?;
        if !bytes.is_empty() {
            self.drop_foreign(start, text, &mut changes, done)?;
        }
        done.sleds += changes.len() as u64;
        let restaged = changes.iter().filter(|change| change.restaged);
        done.restaged += restaged.count() as u64;
        Ok(())
    }

    /// Writes these `pieces` of `text`, ordered by address, and nothing between them. `text` stands
    /// at `start`.
    fn write(&mut self, start: u64, text: &[u8], pieces: &[Range<usize>]) -> Result<()> {
        if let (Some(first), Some(last)) = (pieces.first(), pieces.last()) {
            // Before the writes: a write that fails may have copied its page.
            self.private
                .note_copies(start + first.start as u64..start + last.end as u64);
        }
        let pieces: Vec<_> = pieces
            .iter()
            .map(|piece| {
                let bytes = text.get(piece.clone()).unwrap_or_default();
                (TargetAddr(start + piece.start as u64), bytes)
            })
            .collect();
        self.memory
            .write_pieces(&pieces)
            .map_err(|(at, error)| failed_access(self.pid, "write", at.0, &error))
    }

    /// Reads sleds back. A sled that differs from `text` counts as foreign: another tracer has
    /// written to it meanwhile. If such a sled is on, it is switched off.
    fn drop_foreign(
        &self,
        start: u64,
        text: &[u8],
        changes: &mut Vec<Change>,
        done: &mut PatchReport,
    ) -> Result<()> {
        let mut there = vec![0u8; text.len()];
        self.memory
            .read(TargetAddr(start), &mut there)
            .map_err(|error| failed_access(self.pid, "read", start, &error))?;
        // In the usual case, one comparison covers all sleds.
        if there == text {
            return Ok(());
        }
        let is_foreign =
            |change: &mut Change| there.get(change.sled.clone()) != text.get(change.sled.clone());
        let foreign: Vec<Change> = changes.extract_if(.., is_foreign).collect();
        done.foreign += foreign.len() as u64;
        for Change {
            byte: (at, value),
            off,
            ..
        } in foreign
        {
            if value != off && there.get(at) == Some(&value) {
                let address = start + at as u64;
                self.memory
                    .write(TargetAddr(address), &[off])
                    .map_err(|error| failed_access(self.pid, "write", address, &error))?;
            }
        }
        Ok(())
    }
}

/// The refusal after an access to the memory of a process that failed. `what` is "read" or "write".
pub(super) fn failed_access(pid: Pid, what: &str, at: u64, error: &io::Error) -> Refusal {
    let reason = match (what, error.raw_os_error()) {
        (_, Some(nix::libc::ESRCH)) => Reason::TargetExited,
        ("write", _) => Reason::MemoryWrite,
        _ => Reason::Io,
    };
    let message = format!("process {pid}: cannot {what} its memory at {at:#x}: {error}");
    Refusal::new(reason, message)
}

/// Puts the bytes that stage the sled at `at` into `text`. Returns their position.
fn put(staging: &Staging, at: usize, text: &mut [u8]) -> Range<usize> {
    let start = at + usize::from(staging.offset);
    let place = start..start + staging.bytes().len();
    if let Some(body) = text.get_mut(place.clone()) {
        body.copy_from_slice(staging.bytes());
    }
    place
}

#[cfg(test)]
mod tests {
    use sled_encoders::x86_64::{State, classify, stage};

    use super::*;
    use crate::target::Maps;

    /// The breakpoint of another tracer.
    const INT3: u8 = 0xcc;
    /// Two functions. The entry of the second stands next to the exit of the first.
    const SLEDS: [(SledKind, usize); 4] = [
        (SledKind::Entry, 3),
        (SledKind::Exit, 20),
        (SledKind::Entry, 31),
        (SledKind::TailExit, 50),
    ];
    const LENGTH: usize = 70;

    /// Text in the memory of this process. It is read and written only through the kernel.
    struct Text {
        memory: Memory,
        address: u64,
        _owner: Vec<u8>,
    }

    impl Text {
        fn new() -> Self {
            let pid = Pid::this();
            let mut owner = vec![0u8; LENGTH];
            let text = Self {
                memory: Memory::open(pid, pid.leader()).unwrap(),
                address: owner.as_mut_ptr().expose_provenance() as u64,
                _owner: owner,
            };
            text.put(0, &[0x90; LENGTH]);
            for (kind, at) in SLEDS {
                let compiled = match kind {
                    SledKind::Exit => [0xc3, 0x2e, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0],
                    _ => [0xeb, 0x09, 0x66, 0x0f, 0x1f, 0x84, 0, 0, 2, 0, 0],
                };
                text.put(at, &compiled);
            }
            text
        }

        fn bytes(&self) -> Vec<u8> {
            let mut bytes = vec![0; LENGTH];
            self.memory
                .read(TargetAddr(self.address), &mut bytes)
                .unwrap();
            bytes
        }

        fn put(&self, at: usize, bytes: &[u8]) {
            let address = TargetAddr(self.address + at as u64);
            self.memory.write(address, bytes).unwrap();
        }

        /// Switches all sleds. `meanwhile` runs between the read of the sleds and the writes.
        fn switch(&self, to: Switch, meanwhile: impl FnOnce()) -> PatchReport {
            let mut bytes = self.bytes();
            let mut changes = Vec::new();
            for (kind, at) in SLEDS {
                let address = self.address + at as u64;
                let staging = match classify(kind, address, &bytes[at..]) {
                    State::Compiled => Some(stage(kind, address, self.address + 0x1000).unwrap()),
                    State::Staged { .. } | State::On { .. } => None,
                    State::Breakpoint | State::Foreign | State::Runtime => continue,
                };
                changes.push(Change::new(kind, at, staging.as_ref(), to, &mut bytes));
            }
            meanwhile();
            let mut report = PatchReport::default();
            let mut page = PageWriter {
                pid: Pid::this(),
                memory: &self.memory,
                private: &mut PrivatePages::new(&Maps::default()),
            };
            page.write_changes(self.address, &mut bytes, changes, &mut report)
                .unwrap();
            report
        }

        fn states(&self) -> [State; 4] {
            let bytes = self.bytes();
            SLEDS.map(|(kind, at)| classify(kind, self.address + at as u64, &bytes[at..]))
        }

        fn are_on(&self) -> [bool; 4] {
            self.states().map(|state| matches!(state, State::On { .. }))
        }
    }

    fn report(sleds: u64, foreign: u64) -> PatchReport {
        PatchReport {
            sleds,
            foreign,
            ..PatchReport::default()
        }
    }

    #[test]
    fn no_byte_between_sleds_is_written() {
        let text = Text::new();
        let is_sled = |at: &usize| {
            let mut sleds = SLEDS.iter();
            sleds.any(|&(kind, sled)| (sled..sled + sled_bytes(kind)).contains(at))
        };
        let between: Vec<usize> = (0..LENGTH).filter(|at| !is_sled(at)).collect();
        let put = |byte: u8| between.iter().for_each(|&at| text.put(at, &[byte]));
        // The first switch also writes bodies. Breakpoints come, go, and come.
        for (to, byte) in [
            (Switch::On, INT3),
            (Switch::Off, 0x90),
            (Switch::On, INT3),
            (Switch::Off, INT3),
        ] {
            assert_eq!(text.switch(to, || put(byte)), report(4, 0));
            assert_eq!(text.are_on(), [to == Switch::On; 4]);
            let bytes = text.bytes();
            assert!(between.iter().all(|&at| bytes[at] == byte), "{bytes:x?}");
        }
    }

    /// Each way to switch a text, the first time with bodies, and each byte at which a breakpoint
    /// can stand.
    fn each_place(check: impl Fn(&Text, bool, Switch, usize)) {
        for (staged, to) in [(false, Switch::On), (true, Switch::On), (true, Switch::Off)] {
            for place in 0..LENGTH {
                let text = Text::new();
                if staged {
                    text.switch(Switch::On, || {});
                }
                if staged && to == Switch::On {
                    text.switch(Switch::Off, || {});
                }
                check(&text, staged, to, place);
            }
        }
    }

    /// Otherwise the program would die of SIGTRAP: the tracer that removed its breakpoint no longer
    /// handles it.
    #[test]
    fn a_breakpoint_that_goes_meanwhile_does_not_come_back() {
        each_place(|text, staged, to, place| {
            let without = text.bytes()[place];
            text.put(place, &[INT3]);
            text.switch(to, || text.put(place, &[without]));
            let bytes = text.bytes();
            assert!(
                !bytes.contains(&INT3),
                "{staged} {to:?} {place}: {bytes:x?}"
            );
        });
    }

    /// In a staged sled, that is the byte that switches it. In the first staging it is the body,
    /// where no thread comes by. A write to any other byte of the sled is seen before the sled is
    /// on.
    #[test]
    fn a_breakpoint_that_comes_meanwhile_is_erased_only_in_a_byte_that_is_written() {
        each_place(|text, staged, to, place| {
            text.switch(to, || text.put(place, &[INT3]));
            let is_written = |(kind, at): (SledKind, usize)| {
                let body = match kind {
                    SledKind::Exit => at + 1..at + 6,
                    _ => at + 2..at + 11,
                };
                match staged {
                    true => place == at + usize::from(switch(kind).offset),
                    false => body.contains(&place),
                }
            };
            assert_eq!(
                text.bytes()[place] == INT3,
                !SLEDS.into_iter().any(is_written),
                "{staged} {to:?} {place}"
            );
        });
    }

    #[test]
    fn a_sled_that_another_tracer_writes_to_meanwhile_is_left_off() {
        // A write to the body, at the first switch and later. The neighbouring sled is not foreign.
        for staged in [false, true] {
            for (foreign, (_, at)) in SLEDS.into_iter().enumerate() {
                let text = Text::new();
                if staged {
                    text.switch(Switch::On, || {});
                    text.switch(Switch::Off, || {});
                }
                // In exits, the last byte of a body is still the compiler's.
                let place = at + 10;
                let done = text.switch(Switch::On, || text.put(place, &[INT3]));
                let overwritten = !staged && SLEDS[foreign].0 != SledKind::Exit;
                let others = [0, 1, 2, 3].map(|other| other != foreign || overwritten);
                assert_eq!(text.are_on(), others);
                let left = u64::from(!overwritten);
                assert_eq!(done, report(4 - left, left));
                assert_eq!(text.bytes()[place] == INT3, !overwritten);
            }
        }
    }
}
