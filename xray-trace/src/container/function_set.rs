//! The functions of a block. An encoder gathers them while it packs the events: the first event of
//! a function in a block names it, so events that are expected add nothing.

use std::fmt;

use super::events::Events;
use super::varint;
use crate::model::{EventBody, FunctionId};

/// The number of remembered functions, which are not gathered again.
const RECENT: usize = 1 << RECENT_BITS;
const RECENT_BITS: u32 = 8;

/// The least number of gathered functions that are searched for repetitions.
const LEAST_SORTED: usize = 1024;

/// A set of functions: the differences of the ascending ids, packed. It takes fewer bytes than the
/// events that name the functions.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct FunctionSet(Box<[u8]>);

/// The named functions of the block that is being packed.
#[derive(Debug)]
pub(super) struct NamedFunctions {
    /// The functions, with repetitions. Emptied by `take`.
    named: Vec<FunctionId>,
    /// The length of `named` at which repetitions are removed.
    sort_at: usize,
    /// Functions that are in `named`, by the hash of their ids: the block's number in the upper
    /// half, the id in the lower half. An entry of another block is empty.
    recent: Box<[u64; RECENT]>,
    /// The block's number, in the upper half. Never 0.
    generation: u64,
}

// === impl FunctionSet ===

impl FunctionSet {
    /// The functions of these events, up to the first event that cannot be unpacked.
    #[must_use]
    pub fn of(events: Events) -> Self {
        let mut named = NamedFunctions::new();
        for event in events.map_while(Result::ok) {
            let function = match event.body {
                EventBody::Call { function, .. } => Some(function),
                EventBody::Data { data, .. } => data.function(),
                EventBody::Cpu { .. }
                | EventBody::Unwound { .. }
                | EventBody::UnmatchedExit
                | EventBody::Lost { .. } => None,
            };
            if let Some(function) = function {
                named.add(function);
            }
        }
        named.take()
    }

    /// The functions, by id.
    pub fn iter(&self) -> impl Iterator<Item = FunctionId> {
        let (mut at, mut last) = (0, 0_u64);
        std::iter::from_fn(move || {
            let (more, len) = varint::read(self.0.get(at..)?).ok()?;
            at += len;
            last = last.checked_add(more)?;
            u32::try_from(last).ok().map(FunctionId)
        })
    }
}

impl fmt::Debug for FunctionSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

// === impl NamedFunctions ===

impl NamedFunctions {
    pub(super) fn new() -> Self {
        Self {
            named: Vec::new(),
            sort_at: LEAST_SORTED,
            recent: Box::new([0; RECENT]),
            generation: 1 << 32,
        }
    }

    /// Adds a function that an event names.
    pub(super) fn add(&mut self, function: FunctionId) {
        let hash = function.0.wrapping_mul(0x9e37_79b1) >> (u32::BITS - RECENT_BITS);
        let entry = self.generation | u64::from(function.0);
        let recent = &mut self.recent[hash as usize];
        if *recent == entry {
            return;
        }
        *recent = entry;
        if self.named.len() >= self.sort_at {
            self.sort();
            self.sort_at = LEAST_SORTED.max(2 * self.named.len());
        }
        self.named.push(function);
    }

    /// Takes the functions of the block, and begins the next block.
    pub(super) fn take(&mut self) -> FunctionSet {
        self.sort();
        let mut bytes = Vec::with_capacity(2 * self.named.len());
        let mut last = 0;
        for function in &self.named {
            varint::put(&mut bytes, u64::from(function.0 - last));
            last = function.0;
        }
        self.clear();
        FunctionSet(bytes.into())
    }

    /// Forgets the functions of the block, and begins the next block.
    pub(super) fn clear(&mut self) {
        self.named.clear();
        self.sort_at = LEAST_SORTED;
        self.generation = self.generation.wrapping_add(1 << 32);
        if self.generation == 0 {
            *self.recent = [0; RECENT];
            self.generation = 1 << 32;
        }
    }

    fn sort(&mut self) {
        self.named.sort_unstable();
        self.named.dedup();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::container::BlockEncoder;
    use crate::model::{CallKind, DataKind, ThreadId, Ticks, Values};

    /// Ids that are met again and again, ids of a large program, and ids at the limit.
    fn ids() -> impl Strategy<Value = u32> {
        prop_oneof![4 => 0..6_u32, 2 => 0..5000_u32, 1 => u32::MAX - 3..=u32::MAX]
    }

    #[derive(Debug, Clone)]
    enum Push {
        Enter(u32, u64),
        Exit(u32),
        TailExit(u32),
        Custom(Option<u32>),
        Typed(u32),
        Lost,
        Unwound(u64),
        UnmatchedExit(u32),
        Later,
    }

    fn pushes() -> impl Strategy<Value = Vec<Push>> {
        let push = prop_oneof![
            8 => (ids(), 0..3_u64).prop_map(|(id, values)| Push::Enter(id, values)),
            6 => ids().prop_map(Push::Exit),
            1 => ids().prop_map(Push::TailExit),
            1 => prop::option::of(ids()).prop_map(Push::Custom),
            1 => ids().prop_map(Push::Typed),
            1 => Just(Push::Lost),
            1 => (0..4_u64).prop_map(Push::Unwound),
            1 => ids().prop_map(Push::UnmatchedExit),
            1 => Just(Push::Later),
        ];
        prop::collection::vec(push, 0..600)
    }

    proptest! {
        #[test]
        fn an_encoder_knows_the_functions_and_entries_that_its_block_has(
            blocks in prop::collection::vec(pushes(), 1..4),
        ) {
            let mut encoder = BlockEncoder::new(ThreadId(1));
            let mut at = 0;
            for pushes in blocks {
                for push in pushes {
                    at += 3;
                    let ticks = Ticks(at);
                    let mut call = |id, kind, values| {
                        encoder.push_call(ticks, FunctionId(id), kind, values);
                    };
                    match push {
                        Push::Enter(id, values) => call(id, CallKind::Enter, Values::new(0..values)),
                        Push::Exit(id) => call(id, CallKind::Exit, Values::NONE),
                        Push::TailExit(id) => call(id, CallKind::TailExit, Values::NONE),
                        Push::Custom(id) => {
                            encoder.push_user_event(ticks, DataKind::Custom, id.map(FunctionId), 9, b"x");
                        }
                        Push::Typed(id) => {
                            let id = Some(FunctionId(id));
                            encoder.push_user_event(ticks, DataKind::Typed(7), id, 1, b"y");
                        }
                        Push::Lost => encoder.push_lost(ticks, 5),
                        Push::Unwound(calls) => encoder.push_unwound(ticks, calls),
                        Push::UnmatchedExit(id) => {
                            encoder.push_unmatched_exit(ticks);
                            encoder.push_call(ticks, FunctionId(id), CallKind::Exit, None);
                        }
                        Push::Later => at += 1 << 40,
                    }
                }
                let Some(closed) = encoder.close() else { continue };
                let unpacked = crate::container::ClosedBlock::unpacked(closed.block.clone());
                prop_assert_eq!(&closed.functions, &unpacked.functions);
                prop_assert_eq!(closed.entries, unpacked.entries);
                let ids: Vec<_> = closed.functions.iter().collect();
                prop_assert!(ids.is_sorted_by(|a, b| a < b));
                prop_assert!(closed.functions.0.len() <= closed.block.encoded_len());
            }
        }
    }

    #[test]
    fn many_functions_are_each_there_once() {
        let mut named = NamedFunctions::new();
        for _ in 0..3 {
            for id in 0..10_000 {
                named.add(FunctionId(id * 7));
            }
        }
        assert!(named.named.len() < 30_000);
        let functions = named.take();
        assert!(
            functions
                .iter()
                .eq((0..10_000).map(|id| FunctionId(id * 7)))
        );
        // The next block begins empty.
        named.add(FunctionId(7));
        assert!(named.take().iter().eq([FunctionId(7)]));
        assert_eq!(FunctionSet::default().iter().count(), 0);
    }
}
