//! Places in the sequence of a session's blocks. A stream is resumed at one of them.

use xray_trace::{container::Block, model::Ticks};

use super::archive::fingerprint;

/// The bytes of a position for clients.
const LEN: usize = 48;

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
    /// All blocks so far.
    all: Published,
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
        } = self;
        let numbers = [
            session,
            store,
            before.blocks,
            before.events,
            fingerprint,
            last.0,
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
        })
    }

    /// The time of the last event before the place.
    pub(super) fn last(&self) -> Ticks {
        self.last
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

    /// Counts a block with so many events and losses.
    pub(super) fn publish(&mut self, events: u64) {
        self.all.add(events);
    }

    /// Counts the oldest block as dropped.
    pub(super) fn drop_oldest(&mut self, events: u64) {
        self.dropped.add(events);
    }

    /// Counts all blocks as dropped.
    pub(super) fn drop_all(&mut self) {
        self.dropped = self.all;
    }

    /// Counts anew, with these retained blocks. Earlier positions are those of another store.
    pub(super) fn begin_anew(&mut self, retained: impl Iterator<Item = u64>) {
        self.store = self.store.wrapping_add(1);
        (self.all, self.dropped) = Default::default();
        retained.for_each(|events| self.all.add(events));
    }

    /// The place behind a block that has so much before its end.
    pub(super) fn behind(&self, block: &Block, before: Published) -> Position {
        Position {
            session: self.session,
            store: self.store,
            before,
            fingerprint: fingerprint(block),
            last: block.last,
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
        }
    }

    /// The place behind the newest block.
    pub(super) fn newest(&self, block: Option<&Block>) -> Position {
        match block {
            Some(block) => self.behind(block, self.all),
            None => self.oldest(),
        }
    }

    /// The place of an earlier position among these retained blocks, each with its events and
    /// losses. `has_all`: no block was ever dropped, also by earlier daemons. `None`: it is not
    /// known which blocks come after the position.
    pub(super) fn find<'a>(
        &self,
        earlier: &Position,
        has_all: bool,
        retained: impl DoubleEndedIterator<Item = (&'a Block, u64)>,
    ) -> Option<Position> {
        if earlier.session != self.session {
            return None;
        }
        if earlier.store == self.store {
            let Published { blocks, events } = earlier.before;
            let is_here = blocks <= self.all.blocks && events <= self.all.events;
            return is_here.then_some(*earlier);
        }
        if earlier.fingerprint == 0 {
            return has_all.then(|| self.oldest());
        }
        // A stream is resumed near its end.
        let mut before = self.all;
        for (block, events) in retained.rev() {
            if earlier.is_behind(block) {
                return Some(self.behind(block, before));
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
        };
        let bytes = position.to_bytes();
        assert_eq!(Position::from_bytes(&bytes), Some(position));
        for wrong in [&[][..], &bytes[1..], &[bytes.as_slice(), &[0]].concat()] {
            assert_eq!(Position::from_bytes(wrong), None);
        }
    }
}
