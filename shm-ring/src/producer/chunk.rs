//! The chunk in which the reference producer's slow path writes: the one under way, or a new one.

use super::{Recording, Step, Target, begin_view::ViewStep, losses::LossStep, writing::Written};
use crate::{
    layout::{SLOW_WORDS, control, rings},
    memory::SharedMemory,
    sync::Ordering,
};

/// The steps to a chunk with room for the event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ChunkStep {
    Deadline,
    Chunk,
    Rest,
    NewChunk,
    LookForChunk,
    ClaimChunk,
    LookForOwner,
    SetOwner,
    TellClaim,
    SetLimit,
    ReadStarted,
    Publish,
    TellChunk,
}

// === impl Recording ===

impl Recording {
    /// Makes one access for the chunk.
    pub(super) fn chunk_step<M: SharedMemory>(
        &mut self,
        step: ChunkStep,
        target: &Target<'_, M>,
    ) -> Step {
        let g = target.geometry;
        let slot = target.table.slot(self.index);
        match step {
            ChunkStep::Deadline => match target.rings.load(rings::DEADLINE) {
                end if end.wrapping_sub(1) < self.ticks => Step::Loss(LossStep::NoteClosed),
                _ => Step::Chunk(ChunkStep::Chunk),
            },
            ChunkStep::Chunk => {
                let ring = g.ring_offset(self.index)..g.ring_offset(self.index) + g.ring_bytes();
                let fresh = slot.limit.load(Ordering::Relaxed) == 0;
                let left = (g.chunk_bytes() - self.cursor % g.chunk_bytes()) / 8;
                if fresh || !ring.contains(&self.cursor) || g.in_guard(self.cursor) {
                    Step::Chunk(ChunkStep::NewChunk)
                } else if left < SLOW_WORDS + self.event.payload_words(g) {
                    self.push_filler(left);
                    Step::Chunk(ChunkStep::Rest)
                } else {
                    Step::View(ViewStep::CompareSince)
                }
            }
            ChunkStep::Rest => match self.put_word(target) {
                Written::Some => Step::Chunk(ChunkStep::Rest),
                Written::All => Step::Chunk(ChunkStep::NewChunk),
                Written::Robbed => Step::Loss(LossStep::Robbed),
            },
            ChunkStep::NewChunk => {
                self.started = slot.started.load(Ordering::Relaxed);
                // Pairs with the collector's store of RELEASED after it emptied the chunk.
                let released = target
                    .rings
                    .load(target.line(self.index, control::RELEASED));
                let room = self.started.wrapping_sub(released) < g.chunks();
                if room {
                    Step::Chunk(ChunkStep::LookForChunk)
                } else {
                    Step::Loss(LossStep::PutBack)
                }
            }
            ChunkStep::LookForChunk if self.is_robbed(target) => Step::Loss(LossStep::CountLoss),
            ChunkStep::LookForChunk => Step::Chunk(ChunkStep::ClaimChunk),
            ChunkStep::ClaimChunk => {
                let claim = slot.started.compare_exchange(
                    self.started,
                    self.started.wrapping_add(1),
                    Ordering::Relaxed,
                    Ordering::Relaxed,
                );
                if claim.is_ok() {
                    Step::Chunk(ChunkStep::LookForOwner)
                } else {
                    Step::Chunk(ChunkStep::NewChunk)
                }
            }
            ChunkStep::LookForOwner if self.is_robbed(target) => Step::Loss(LossStep::Robbed),
            ChunkStep::LookForOwner => Step::Chunk(ChunkStep::SetOwner),
            ChunkStep::SetOwner => {
                target
                    .rings
                    .store(target.line(self.index, control::OWNER), u64::from(self.tid));
                Step::Chunk(ChunkStep::TellClaim)
            }
            ChunkStep::TellClaim => {
                target.rings.store(rings::CLAIM, u64::from(self.tid));
                Step::Chunk(ChunkStep::SetLimit)
            }
            ChunkStep::SetLimit => {
                let ring = g.ring_offset(self.index);
                slot.limit.store(ring + g.ring_bytes(), Ordering::Relaxed);
                self.cursor = ring + (self.started & (g.chunks() - 1)) * g.chunk_bytes();
                Step::Chunk(ChunkStep::ReadStarted)
            }
            ChunkStep::ReadStarted => {
                self.seen = target.rings.load(target.line(self.index, control::STARTED));
                if self.seen > self.started {
                    Step::Chunk(ChunkStep::TellChunk)
                } else {
                    Step::Chunk(ChunkStep::Publish)
                }
            }
            ChunkStep::Publish => {
                let line = target.line(self.index, control::STARTED);
                if target
                    .rings
                    .exchange(line, self.seen, self.started.wrapping_add(1))
                {
                    Step::Chunk(ChunkStep::TellChunk)
                } else {
                    Step::Chunk(ChunkStep::ReadStarted)
                }
            }
            ChunkStep::TellChunk => {
                let begun = self.started.wrapping_add(1);
                target
                    .rings
                    .store(rings::CHUNK, self.cursor.wrapping_add(begun));
                Step::View(ViewStep::SetView)
            }
        }
    }
}
