//! Blocks without what their reader may not see. Which calls there are, and when, stays.

use super::{BegunCalls, Block, BlockEncoder, ClosedBlock, OpenCall};
use crate::model::{EventBody, Values};

/// What is left out of events.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Redaction {
    /// Arguments and results of calls.
    pub values: bool,
    /// The data of user events. Their sizes stay.
    pub data: bool,
}

// === impl Redaction ===

impl Redaction {
    /// Nothing is left out.
    pub const NONE: Self = Self {
        values: false,
        data: false,
    };
    /// Values and data are left out.
    pub const ALL: Self = Self {
        values: true,
        data: true,
    };
}

// === impl Block ===

impl Block {
    /// The block without what is left out, up to the first event that cannot be unpacked. `None` if
    /// that leaves no event.
    #[must_use]
    pub fn redacted(&self, redaction: Redaction) -> Option<Self> {
        if redaction == Redaction::NONE {
            return Some(self.clone());
        }
        let mut encoder = BlockEncoder::new(self.thread);
        let mut events = self.events();
        while let Some(Ok(mut event)) = events.next() {
            match &mut event.body {
                EventBody::Call { values, .. } if redaction.values => *values = Values::NONE,
                EventBody::Data { kind, data } if redaction.data => {
                    let size = u32::try_from(data.size()).unwrap_or(u32::MAX);
                    encoder.push_user_event(event.ticks, *kind, data.function(), size, &[]);
                    continue;
                }
                _ => {}
            }
            encoder.push(&event, &events, |function| function);
        }
        encoder.finish()
    }
}

// === impl ClosedBlock ===

impl ClosedBlock {
    /// The same for a closed block.
    #[must_use]
    pub fn redacted(&self, redaction: Redaction) -> Option<Self> {
        let mut closed = Self {
            block: self.block.redacted(redaction)?,
            ..self.clone()
        };
        if redaction.values
            && let Some(stack) = &mut closed.stack
        {
            let bare = stack.begun.iter().map(|call| OpenCall {
                args: Values::NONE,
                ..call
            });
            stack.begun = BegunCalls::new(bare);
        }
        Some(closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        container::StackChange,
        model::{CallKind, DataKind, FunctionId, ThreadId, Ticks},
    };

    fn block() -> Block {
        let mut encoder = BlockEncoder::new(ThreadId(3));
        let arguments = Values::new([7, 8]);
        encoder.push_call(Ticks(5), FunctionId(1), CallKind::Enter, arguments);
        let (function, secret) = (Some(FunctionId(1)), b"secret");
        encoder.push_user_event(Ticks(6), DataKind::Typed(4), function, 9, secret);
        encoder.push_lost(Ticks(7), 2);
        let result = Values::new([9]);
        encoder.push_call(Ticks(8), FunctionId(1), CallKind::Exit, result);
        encoder.finish().unwrap()
    }

    /// The values, and the data, that are left.
    fn left(block: &Block) -> (usize, Vec<u8>) {
        let (mut values, mut bytes) = (0, Vec::new());
        let mut events = block.events();
        while let Some(event) = events.next() {
            match event.unwrap().body {
                EventBody::Call { values: its, .. } => values += its.len(),
                EventBody::Data { data, .. } => {
                    assert_eq!(data.size(), 9);
                    bytes.extend_from_slice(events.data(data));
                }
                _ => {}
            }
        }
        (values, bytes)
    }

    #[test]
    fn values_and_data_are_left_out_and_all_else_stays() {
        let whole = block();
        assert_eq!(left(&whole), (3, b"secret".to_vec()));
        for (redaction, values, data) in [
            (Redaction::NONE, 3, &b"secret"[..]),
            (Redaction::ALL, 0, b""),
            (
                Redaction {
                    values: true,
                    data: false,
                },
                0,
                b"secret",
            ),
            (
                Redaction {
                    values: false,
                    data: true,
                },
                3,
                b"",
            ),
        ] {
            let redacted = whole.redacted(redaction).unwrap();
            assert_eq!(left(&redacted), (values, data.to_vec()), "{redaction:?}");
            let facts = |block: &Block| (block.first, block.last, block.calls, block.lost);
            assert_eq!(facts(&redacted), facts(&whole));
        }
        let needle = b"secret";
        let bytes = whole.redacted(Redaction::ALL).unwrap().payload;
        let bytes = bytes.load().unwrap();
        assert!(!bytes.windows(needle.len()).any(|window| window == needle));
    }

    #[test]
    fn open_calls_lose_their_arguments() {
        let begun = BegunCalls::new([OpenCall {
            function: FunctionId(1),
            start: Ticks(5),
            args: Values::new([7, 8]),
        }]);
        let closed = ClosedBlock {
            stack: Some(StackChange {
                begun,
                ..StackChange::cleared()
            }),
            ..ClosedBlock::unpacked(block())
        };
        let redacted = closed.redacted(Redaction::ALL).unwrap();
        let calls: Vec<_> = redacted.stack.unwrap().begun.iter().collect();
        assert_eq!((calls.len(), calls[0].args.len()), (1, 0));
        let data_alone = Redaction {
            values: false,
            data: true,
        };
        assert_eq!(closed.redacted(data_alone).unwrap().stack, closed.stack);
    }
}
