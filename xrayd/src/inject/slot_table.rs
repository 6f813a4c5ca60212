//! The slots of a target's table: reads their owners, and makes slots free or closed, one by one or
//! all.
//!
//! Threads of the target also change the owner of a slot, with a compare-and-exchange of 0. So only
//! the owner shows whether a slot is free, and it is written last.

use std::{io, ops::Range};

use shm_ring::layout::{HEADER_BYTES, LINE_BYTES, slot};

use super::{Layout, SETTLE, clear_live};
use crate::{pid::TargetAddr, sys::Memory};

/// Bytes of a slot.
const LINE: usize = 64;
const _: () = assert!(LINE as u64 == LINE_BYTES);
/// Bytes of a slot's owner.
const OWNER: usize = 4;
const _: () = assert!(slot::TID == 0 && slot::VIEW == OWNER as u64);
/// Slots that are read at once.
const AT_ONCE: u32 = 1 << 10;

impl Layout {
    /// The owners of these slots, as far as the table has such slots.
    pub(crate) fn slot_owners(&self, memory: &Memory, slots: Range<u32>) -> io::Result<Vec<u32>> {
        let end = slots.end.min(self.geometry.slots());
        let mut owners = Vec::new();
        let mut first = slots.start;
        while first < end {
            let next = end.min(first.saturating_add(AT_ONCE));
            let mut lines = vec![[0u8; LINE]; (first..next).len()];
            memory.read(self.slot(first), lines.as_flattened_mut())?;
            let owner = |[a, b, c, d, ..]: &[u8; LINE]| u32::from_le_bytes([*a, *b, *c, *d]);
            owners.extend(lines.iter().map(owner));
            first = next;
        }
        Ok(owners)
    }

    /// Slots that threads may take, or have taken.
    pub(super) fn open_slots(&self, memory: &Memory) -> io::Result<u32> {
        let owners = self.slot_owners(memory, 0..self.geometry.slots())?;
        let open = owners.iter().filter(|owner| **owner != slot::CLOSED);
        Ok(u32::try_from(open.count()).unwrap_or(u32::MAX))
    }

    /// Closes those of these slots that are free. No thread may look for a slot meanwhile.
    pub(super) fn close_slots(&self, memory: &Memory, slots: &[u32]) -> io::Result<()> {
        if slots.is_empty() {
            return Ok(());
        }
        let owners = self.slot_owners(memory, 0..self.geometry.slots())?;
        let is_free = |index: &&u32| owners.get(**index as usize) == Some(&0);
        let mut free = slots.iter().filter(is_free);
        free.try_for_each(|&index| self.write_owner(memory, index, slot::CLOSED))
    }

    /// Ends all writing to the rings, also by sleds that a dead daemon left on: every thread finds
    /// its slot empty, and the slow path returns at once. A thread that is in a trampoline
    /// meanwhile has left it after the pause.
    pub(super) fn silence(&self, memory: &Memory) -> io::Result<()> {
        clear_live(memory, TargetAddr(self.table))?;
        std::thread::sleep(SETTLE);
        let mut piece = vec![0u8; 1 << 16];
        let end = self.table + self.geometry.table_bytes();
        let mut at = self.table + HEADER_BYTES;
        while at < end {
            let length =
                usize::try_from(end - at).map_or(piece.len(), |left| left.min(piece.len()));
            let slots = &mut piece[..length];
            memory.read(TargetAddr(at), slots)?;
            // Untouched pages stay untouched.
            if slots.iter().any(|&byte| byte != 0) {
                slots.fill(0);
                memory.write(TargetAddr(at), slots)?;
            }
            at += length as u64;
        }
        std::thread::sleep(SETTLE);
        Ok(())
    }

    /// Withdraws a slot. From now on no thread finds it as its own, or as free.
    pub(crate) fn withdraw_slot(&self, memory: &Memory, index: u32) -> io::Result<()> {
        self.write_owner(memory, index, slot::WITHDRAWN)
    }

    /// Frees a slot that no thread finds as its own.
    pub(crate) fn free_slot(&self, memory: &Memory, index: u32) -> io::Result<()> {
        // Everything but the owner first: a thread that claims the slot finds it as new, with limit
        // 0.
        let rest = TargetAddr(self.slot(index).0 + slot::VIEW);
        memory.write(rest, &[0; LINE - OWNER])?;
        self.write_owner(memory, index, 0)
    }

    /// Closes a slot that no thread finds as its own.
    pub(crate) fn close_slot(&self, memory: &Memory, index: u32) -> io::Result<()> {
        self.write_owner(memory, index, slot::CLOSED)
    }

    fn write_owner(&self, memory: &Memory, index: u32, owner: u32) -> io::Result<()> {
        memory.write(self.slot(index), &owner.to_le_bytes())
    }

    fn slot(&self, index: u32) -> TargetAddr {
        TargetAddr(self.table + self.geometry.slot_offset(index))
    }
}
