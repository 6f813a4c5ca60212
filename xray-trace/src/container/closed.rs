//! A closed block with the facts that its encoder and the follower of its thread have. A writer of
//! the block uses them and does not unpack the block.

use super::varint;
use super::{Block, BlockEncoder, FunctionSet, OpenCall};
use crate::model::{CallKind, EventBody, FunctionId, Ticks, Values};

/// A block, and the facts about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClosedBlock {
    /// The block.
    pub block: Block,
    /// The functions of its events.
    pub functions: FunctionSet,
    /// The number of entries among its events.
    pub entries: u32,
    /// The change of the open calls. `None` if it is not known.
    pub stack: Option<StackChange>,
}

/// The change of a thread's open calls by the events of one block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StackChange {
    /// The number of calls that are open before the block.
    pub before: u64,
    /// The number of the outermost calls among these that are open during the whole block.
    pub kept: u64,
    /// The calls that are open after the block, within the kept ones.
    pub begun: BegunCalls,
    /// True if each exit belongs to an open call, and no event is lost.
    pub nests: bool,
    /// True if `before` is the number of calls that were open after the thread's previous block.
    /// False for the first block, and after events that are in no block.
    pub continues: bool,
}

/// Calls that began in a block, outermost first, packed.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BegunCalls {
    count: usize,
    bytes: Box<[u8]>,
}

// === impl ClosedBlock ===

impl ClosedBlock {
    /// A block of which nothing is known. Its events are unpacked to find its functions.
    #[must_use]
    pub fn unpacked(block: Block) -> Self {
        let events = block.events().map_while(Result::ok);
        let entries = events.filter(|event| {
            let body = event.body;
            matches!(body, EventBody::Call { kind, .. } if kind == CallKind::Enter)
        });
        let entries = u32::try_from(entries.count()).unwrap_or(u32::MAX);
        let functions = FunctionSet::of(block.events());
        Self {
            block,
            functions,
            entries,
            stack: None,
        }
    }
}

// === impl BlockEncoder ===

impl BlockEncoder {
    /// Takes the block with the facts about its events, if it has events, and begins the next one.
    /// The encoder does not know the open calls.
    #[must_use]
    pub fn close(&mut self) -> Option<ClosedBlock> {
        let entries = self.entries();
        let functions = self.take_functions();
        let block = self.finish()?;
        Some(ClosedBlock {
            block,
            functions,
            entries,
            stack: None,
        })
    }
}

// === impl StackChange ===

impl StackChange {
    /// The change by a block that has only a loss.
    #[must_use]
    pub fn cleared() -> Self {
        Self {
            before: 0,
            kept: 0,
            begun: BegunCalls::default(),
            nests: false,
            continues: false,
        }
    }
}

// === impl BegunCalls ===

impl BegunCalls {
    /// Packs calls. Each began no earlier than the one before.
    #[must_use]
    pub fn new(calls: impl IntoIterator<Item = OpenCall>) -> Self {
        let (mut bytes, mut count, mut last) = (Vec::new(), 0, 0);
        for OpenCall {
            function,
            start,
            args,
        } in calls
        {
            varint::put(
                &mut bytes,
                2 * u64::from(function.0) + u64::from(!args.is_empty()),
            );
            varint::put(&mut bytes, start.0.saturating_sub(last));
            if !args.is_empty() {
                varint::put(&mut bytes, args.len() as u64);
                for arg in args.as_slice() {
                    varint::put(&mut bytes, *arg);
                }
            }
            last = start.0;
            count += 1;
        }
        Self {
            count,
            bytes: bytes.into(),
        }
    }

    /// Their number.
    #[must_use]
    pub fn len(&self) -> usize {
        self.count
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The calls, outermost first.
    pub fn iter(&self) -> impl Iterator<Item = OpenCall> {
        let (mut at, mut last) = (0, 0_u64);
        std::iter::from_fn(move || {
            let mut number = || {
                let (number, len) = varint::read(self.bytes.get(at..)?).ok()?;
                at += len;
                Some(number)
            };
            let function = number()?;
            last = last.checked_add(number()?)?;
            let mut args = Values::NONE;
            if function & 1 == 1 {
                let mut values = [0; Values::MOST];
                let count = usize::try_from(number()?).ok()?;
                for value in values.get_mut(..count)? {
                    *value = number()?;
                }
                args = Values::new(values.into_iter().take(count));
            }
            Some(OpenCall {
                function: FunctionId(u32::try_from(function >> 1).ok()?),
                start: Ticks(last),
                args,
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_are_read_as_they_were_packed() {
        let call = |function, start, args: &[u64]| OpenCall {
            function: FunctionId(function),
            start: Ticks(start),
            args: Values::new(args.iter().copied()),
        };
        let calls = [
            call(3, 100, &[]),
            call(u32::MAX, 100, &[u64::MAX, 0]),
            call(0, u64::MAX, &[1, 2, 3, 4, 5, 6]),
        ];
        let packed = BegunCalls::new(calls);
        assert_eq!((packed.len(), packed.is_empty()), (3, false));
        assert!(packed.iter().eq(calls));
        let none = BegunCalls::default();
        assert_eq!((none.iter().count(), none.is_empty()), (0, true));
    }
}
