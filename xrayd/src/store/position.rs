//! Places in the sequence of a session's blocks. A stream is resumed at one of them.

use xray_trace::{container::Block, model::Ticks};

use super::archive::fingerprint;

/// The bytes of a position for clients.
const LEN: usize = 64;

/// A place behind a block of a session, or before its first one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Position {
    /// The session, which later daemons go on with.
    session: u64,
    /// The event store of the session, of which each daemon has another one.
    store: u64,
    /// What comes before the place in this store.
    pub(super) before: Published,
    /// The fingerprint of the block, and the time of its last event. 0 before the first block.
    fingerprint: u64,
    last: Ticks,
    /// The time of the latest event before the place. A block can end before an earlier one does,
    /// for threads publish their blocks at their own pace.
    latest: Ticks,
    /// Blocks that begin at this time or before are not for the reader. 0: there are none.
    pub(super) later_than: Ticks,
}

/// Where a stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StreamBegin {
    /// With what happens from now on.
    Now,
    /// With what is retained since this moment.
    Since(Ticks),
    /// With what comes after this place.
    After(Position),
}

/// Numbers of published blocks and of their events, with the losses that they report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct Published {
    pub(super) blocks: u64,
    pub(super) events: u64,
}

/// The numbers of the blocks in an event store.
#[derive(Debug, Default)]
pub(super) struct Numbering {
    session: u64,
    store: u64,
    /// All blocks so far, and the time of their latest event.
    all: Published,
    latest: u64,
    /// Those that are not retained any more.
    pub(super) dropped: Published,
}

// === impl Position ===

impl Position {
    /// The bytes that a client keeps. They mean nothing to it.
    #[must_use]
    pub fn to_bytes(self) -> Vec<u8> {
        let Self {
            session,
            store,
            before,
            fingerprint,
            last,
            latest,
            later_than,
        } = self;
        let numbers = [
            session,
            store,
            before.blocks,
            before.events,
            fingerprint,
            last.0,
            latest.0,
            later_than.0,
        ];
        numbers.into_iter().flat_map(u64::to_le_bytes).collect()
    }

    /// Reads what a client has kept. `None`: these are no bytes of a position.
    #[must_use]
    pub fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let bytes: &[u8; LEN] = bytes.try_into().ok()?;
        let (numbers, _) = bytes.as_chunks();
        let mut numbers = numbers.iter().map(|number| u64::from_le_bytes(*number));
        let mut next = || numbers.next();
        Some(Self {
            session: next()?,
            store: next()?,
            before: Published {
                blocks: next()?,
                events: next()?,
            },
            fingerprint: next()?,
            last: Ticks(next()?),
            latest: Ticks(next()?),
            later_than: Ticks(next()?),
        })
    }

    /// The same place, for a reader that gets no blocks which begin at this time or before.
    pub(super) fn leaving_out(self, later_than: Ticks) -> Self {
        Self { later_than, ..self }
    }

    /// True if this block comes before the place.
    fn is_behind(&self, block: &Block) -> bool {
        block.last == self.last && fingerprint(block) == self.fingerprint
    }
}

// === impl Published ===

impl Published {
    fn add(&mut self, events: u64) {
        self.blocks += 1;
        self.events = self.events.saturating_add(events);
    }
}

// === impl Numbering ===

impl Numbering {
    /// Gives the session and the event store their numbers.
    pub(super) fn identify(&mut self, session: u64, store: u64) {
        (self.session, self.store) = (session, store);
    }

    /// Counts a block with so many events and losses, up to this time. Returns the time of the
    /// latest event so far.
    pub(super) fn publish(&mut self, events: u64, last: Ticks) -> Ticks {
        self.all.add(events);
        self.latest = self.latest.max(last.0);
        Ticks(self.latest)
    }

    /// Counts the oldest block as dropped.
    pub(super) fn drop_oldest(&mut self, events: u64) {
        self.dropped.add(events);
    }

    /// Counts all blocks as dropped.
    pub(super) fn drop_all(&mut self) {
        self.dropped = self.all;
    }

    /// Counts anew, with these retained blocks. Earlier positions belong to another store then.
    pub(super) fn begin_anew(&mut self, retained: impl Iterator<Item = u64>) {
        self.store = self.store.wrapping_add(1);
        self.all = self.dropped;
        retained.for_each(|events| self.all.add(events));
    }

    /// The place behind a block that has so much before its end, up to this time.
    pub(super) fn behind(&self, block: &Block, before: Published, latest: Ticks) -> Position {
        Position {
            session: self.session,
            store: self.store,
            before,
            fingerprint: fingerprint(block),
            last: block.last,
            latest,
            later_than: Ticks(0),
        }
    }

    /// The place before the oldest retained block.
    pub(super) fn oldest(&self) -> Position {
        Position {
            session: self.session,
            store: self.store,
            before: self.dropped,
            fingerprint: 0,
            last: Ticks(0),
            latest: Ticks(0),
            later_than: Ticks(0),
        }
    }

    /// The same, so far before the oldest retained block that this many events and losses come
    /// between them.
    pub(super) fn before_oldest(&self, events: u64) -> Position {
        let oldest = self.oldest();
        Position {
            before: Published {
                blocks: oldest.before.blocks.saturating_sub(events.min(1)),
                events: oldest.before.events.saturating_sub(events),
            },
            ..oldest
        }
    }

    /// The place behind the newest block.
    pub(super) fn newest(&self, block: Option<&Block>) -> Position {
        match block {
            Some(block) => self.behind(block, self.all, Ticks(self.latest)),
            None => self.oldest(),
        }
    }

    /// The place at which a stream begins if it is not known which blocks come after an earlier
    /// position: all that is retained, without what the reader may have. It has nothing of another
    /// session.
    pub(super) fn not_found(&self, earlier: &Position, now: Ticks) -> Position {
        let later_than = match earlier.session == self.session {
            true => earlier.latest.max(earlier.later_than).min(now),
            false => Ticks(0),
        };
        self.oldest().leaving_out(later_than)
    }

    /// True if an earlier daemon has given out the position.
    pub(super) fn is_earlier(&self, position: &Position) -> bool {
        position.store != self.store
    }

    /// The place of an earlier position among these retained blocks, each with its events and
    /// losses, and with the time of the latest event up to it. `None`: it is not known which blocks
    /// come after the position.
    pub(super) fn find<'a>(
        &self,
        earlier: &Position,
        retained: impl DoubleEndedIterator<Item = (&'a Block, u64, Ticks)>,
    ) -> Option<Position> {
        if earlier.session != self.session {
            return None;
        }
        let found = |at: Position| Position {
            latest: at.latest.max(earlier.latest),
            later_than: earlier.later_than,
            ..at
        };
        if earlier.store == self.store {
            let Published { blocks, events } = earlier.before;
            let is_here = blocks <= self.all.blocks && events <= self.all.events;
            return is_here.then_some(*earlier);
        }
        if earlier.fingerprint == 0 {
            let has_all = self.dropped == Published::default();
            return has_all.then(|| found(self.oldest()));
        }
        // A stream is resumed near its end.
        let mut before = self.all;
        for (block, events, latest) in retained.rev() {
            if earlier.is_behind(block) {
                return Some(found(self.behind(block, before, latest)));
            }
            before.blocks -= 1;
            before.events = before.events.saturating_sub(events);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_is_read_back_and_other_bytes_are_refused() {
        let position = Position {
            session: 1,
            store: u64::MAX,
            before: Published {
                blocks: 3,
                events: 4,
            },
            fingerprint: 5,
            last: Ticks(6),
            latest: Ticks(7),
            later_than: Ticks(8),
        };
        let bytes = position.to_bytes();
        assert_eq!(Position::from_bytes(&bytes), Some(position));
        for wrong in [&[][..], &bytes[1..], &[bytes.as_slice(), &[0]].concat()] {
            assert_eq!(Position::from_bytes(wrong), None);
        }
    }
}
