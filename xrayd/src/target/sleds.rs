//! Reads the sleds of a loaded module as they stand in memory.

use std::collections::BTreeMap;

use sled_encoders::{
    SledKind,
    x86_64::{MAX_SLED_BYTES, State, TailJump, classify, sled_bytes, tail_jump},
};
use xray_trace::instr_map;

use super::{Maps, Module};
use crate::{pid::TargetAddr, sys::Memory};

/// Bytes that are read behind a tail sled: the longest instruction.
const JUMP_BYTES: usize = 15;
/// Text is read in pieces of this size.
const PIECE: u64 = 1 << 16;

/// A sled that can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Site {
    /// Its first byte.
    pub(crate) address: u64,
    /// The kind of the sled.
    pub(crate) kind: SledKind,
    /// Index into the object's functions.
    pub(crate) function: u32,
    /// The state of its bytes.
    pub(crate) state: State,
    /// The jump behind a tail sled; `Plain` for other sleds.
    pub(crate) jump: TailJump,
}

/// The result of [`survey`].
#[derive(Debug, Default)]
pub(crate) struct Survey {
    /// Usable sleds, by address.
    pub(crate) sites: Vec<Site>,
    /// Sleds left alone, counted by reason.
    pub(crate) skipped: BTreeMap<&'static str, u64>,
    /// Sleds that LLVM's runtime patches or has patched.
    pub(crate) runtime: u64,
}

// === impl Survey ===

impl Survey {
    /// Sleds that are on.
    pub(crate) fn sleds_on(&self) -> u64 {
        let is_on = |site: &&Site| matches!(site.state, State::On { .. });
        self.sites.iter().filter(is_on).count() as u64
    }

    fn skip(&mut self, reason: &'static str) {
        *self.skipped.entry(reason).or_default() += 1;
    }
}

/// Reads every sled of `module` and classifies its bytes. Changes nothing.
///
/// # Errors
/// The error of reading the target's memory.
pub(crate) fn survey(memory: &Memory, maps: &Maps, module: &Module) -> std::io::Result<Survey> {
    let mut found = Survey::default();
    let mut wanted: Vec<(u64, SledKind, u32)> = Vec::with_capacity(module.object.sleds().len());
    for (index, function) in (0u32..).zip(module.object.functions()) {
        for sled in module.object.sleds_of(function) {
            let Some(kind) = usable(sled.kind, sled.version) else {
                found.skip("unknown kind");
                continue;
            };
            let address = module.in_target(sled.address).0;
            if !address.is_multiple_of(2) {
                found.skip("not 2-byte aligned");
            } else if !lies_in_text(maps, module, address, sled_bytes(kind)) {
                found.skip("outside the module's executable memory");
            } else {
                wanted.push((address, kind, index));
            }
        }
    }
    wanted.sort_unstable_by_key(|&(address, ..)| address);
    found.sites.reserve_exact(wanted.len());
    let mut piece = Piece::default();
    let mut previous_end = 0;
    for (address, kind, function) in wanted {
        if address < previous_end {
            found.skip("overlaps another sled");
            continue;
        }
        let bytes = piece.read(memory, maps, address)?;
        let Some((sled, after)) = bytes.split_at_checked(sled_bytes(kind)) else {
            found.skip("outside the module's executable memory");
            continue;
        };
        previous_end = address + sled_bytes(kind) as u64;
        let state = classify(kind, address, sled);
        let jump = match kind {
            SledKind::TailExit => tail_jump(after),
            _ => TailJump::Plain,
        };
        match state {
            State::Runtime => found.runtime += 1,
            State::Breakpoint => found.skip("a breakpoint is set there"),
            State::Foreign => found.skip("bytes that no compiler writes"),
            State::Compiled | State::Staged { .. } | State::On { .. } => {
                if jump == TailJump::Other {
                    found.skip("no jump after a tail exit sled");
                } else {
                    found.sites.push(Site {
                        address,
                        kind,
                        function,
                        state,
                        jump,
                    });
                }
            }
        }
    }
    Ok(found)
}

fn usable(kind: instr_map::SledKind, version: u8) -> Option<SledKind> {
    match kind {
        instr_map::SledKind::Entry => Some(SledKind::Entry),
        instr_map::SledKind::Exit => Some(SledKind::Exit),
        instr_map::SledKind::TailExit => Some(SledKind::TailExit),
        instr_map::SledKind::EntryWithArgument => Some(SledKind::EntryArgument),
        instr_map::SledKind::CustomEvent if version == 0 => Some(SledKind::CustomEventV0),
        instr_map::SledKind::CustomEvent => Some(SledKind::CustomEvent),
        instr_map::SledKind::TypedEvent => Some(SledKind::TypedEvent),
        instr_map::SledKind::Unknown(_) => None,
    }
}

fn lies_in_text(maps: &Maps, module: &Module, address: u64, length: usize) -> bool {
    let last = address.wrapping_add(length as u64 - 1);
    [address, last].into_iter().all(|address| {
        maps.at(address)
            .is_some_and(|entry| module.offset_of(entry, address).is_some())
    })
}

/// A window of the target's text.
#[derive(Debug, Default)]
struct Piece {
    start: u64,
    bytes: Vec<u8>,
}

// === impl Piece ===

impl Piece {
    /// The bytes from `address` on: a sled and the longest instruction behind it, or fewer at the
    /// end of the mapping.
    fn read(&mut self, memory: &Memory, maps: &Maps, address: u64) -> std::io::Result<&[u8]> {
        const WANTED: u64 = (MAX_SLED_BYTES + JUMP_BYTES) as u64;
        let have = address
            .checked_sub(self.start)
            .and_then(|skip| (self.bytes.len() as u64).checked_sub(skip))
            .unwrap_or(0);
        let limit = maps.at(address).map_or(address, |entry| entry.range.end);
        if have < WANTED.min(limit - address) {
            let length = PIECE.min(limit - address);
            self.bytes.resize(usize::try_from(length).unwrap_or(0), 0);
            memory.read(TargetAddr(address), &mut self.bytes)?;
            self.start = address;
        }
        let skip = usize::try_from(address - self.start).unwrap_or(usize::MAX);
        let rest = self.bytes.get(skip..).unwrap_or_default();
        Ok(&rest[..rest.len().min(MAX_SLED_BYTES + JUMP_BYTES)])
    }
}
