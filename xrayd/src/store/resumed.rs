//! A live stream that begins at any place among the retained blocks: retained blocks up to the
//! newest one, and live blocks from there on. A reader that is too slow for its queue comes back to
//! the retained blocks.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
};

use xray_trace::model::{ThreadId, Ticks};

use super::{
    event_store::{EventStore, ExpectedReader},
    position::{Position, StreamBegin},
    subscription::{EventSubscription, Source, StreamItem, ending_subscription},
};

/// The most retained blocks that are taken at once.
const PIECE: usize = 32;
/// The most threads of which it is known that they are described. Further ones are described again.
const MOST_DESCRIBED: usize = 1 << 16;
/// The process of the stream.
const SOURCE: Source = Source(0);

/// The reader's end of a stream of one process.
#[derive(Debug)]
pub struct ResumedStream {
    store: Arc<EventStore>,
    begin: Position,
    continues: bool,
    /// The place behind the last block that was taken.
    at: Position,
    /// What comes next.
    ready: VecDeque<StreamItem>,
    /// What comes after that. `None` while retained blocks do.
    queue: Option<EventSubscription>,
    /// The threads that were described, and the names of event types.
    described: HashSet<ThreadId>,
    named: HashMap<u16, String>,
    has_ended: bool,
    _reader: ExpectedReader,
}

// === impl ResumedStream ===

impl ResumedStream {
    /// Begins a stream. First come `items`. `is_damaged`: retained blocks of earlier daemons are
    /// missing.
    pub(crate) fn new(
        store: Arc<EventStore>,
        (begin, is_damaged): (StreamBegin, bool),
        items: impl IntoIterator<Item = StreamItem>,
        reader: ExpectedReader,
    ) -> Self {
        let (at, continues) = store.begin_stream(begin, is_damaged);
        let mut stream = Self {
            store,
            begin: at,
            continues,
            at,
            ready: items.into_iter().collect(),
            queue: None,
            described: HashSet::new(),
            named: HashMap::new(),
            has_ended: false,
            _reader: reader,
        };
        // A stream from now on begins at this moment.
        stream.take_piece();
        stream
    }

    /// The place at which the stream begins.
    pub(crate) fn begin(&self) -> Position {
        self.begin
    }

    /// True if the place after which the stream was to begin was found. Then nothing is missing,
    /// except for what the stream has as lost.
    pub(crate) fn continues(&self) -> bool {
        self.continues
    }

    /// The next item; `None` after the end of the process.
    pub async fn next(&mut self) -> Option<(Source, StreamItem)> {
        loop {
            if let Some(item) = self.ready.pop_front() {
                return Some((SOURCE, item));
            }
            if self.has_ended {
                return None;
            }
            let Some(queue) = &mut self.queue else {
                self.take_piece();
                // All of it may be left out.
                tokio::task::yield_now().await;
                continue;
            };
            let Some((_, mut item)) = queue.next().await else {
                // It was full.
                self.queue = None;
                continue;
            };
            match &mut item {
                StreamItem::Block(published) => {
                    if let Some(position) = &mut published.position {
                        *position = position.leaving_out(self.at.later_than);
                        self.at = *position;
                    }
                    if self.leaves_out(published.closed.block.first) {
                        continue;
                    }
                }
                StreamItem::Thread(thread) => self.note(thread.id),
                StreamItem::Ended => self.has_ended = true,
                _ => {}
            }
            return Some((SOURCE, item));
        }
    }

    /// Takes the next retained blocks. Subscribes if these are all.
    fn take_piece(&mut self) {
        let (publisher, queue) = ending_subscription();
        let publisher = publisher.sender(SOURCE);
        let (piece, threads) = self.store.retained_after(&self.at, PIECE, publisher);
        self.name_event_types();
        if piece.is_last {
            self.queue = Some(queue);
        }
        if piece.dropped > 0 {
            self.ready.push_back(StreamItem::Lost {
                events: piece.dropped,
                position: Some(piece.begin),
            });
        }
        for thread in threads {
            if !self.described.contains(&thread.id) {
                self.note(thread.id);
                self.ready.push_back(StreamItem::Thread(thread));
            }
        }
        self.at = piece.end;
        for item in piece.blocks {
            if !self.leaves_out(item.block.first) {
                self.ready.push_back(StreamItem::Retained(item));
            }
        }
    }

    /// Gives the names of event types that the reader does not have.
    fn name_event_types(&mut self) {
        for event_type in self.store.event_types() {
            let name = self.named.get(&event_type.number);
            if name != Some(&event_type.name) {
                self.named
                    .insert(event_type.number, event_type.name.clone());
                self.ready.push_back(StreamItem::EventType(event_type));
            }
        }
    }

    fn leaves_out(&self, first: Ticks) -> bool {
        let Ticks(then) = self.at.later_than;
        then > 0 && first.0 <= then
    }

    fn note(&mut self, thread: ThreadId) {
        if self.described.len() >= MOST_DESCRIBED {
            self.described.clear();
        }
        self.described.insert(thread);
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use xray_trace::{
        container::BlockEncoder,
        model::{CallKind, FunctionId, ProcessId},
    };

    use super::*;
    use crate::store::{
        PublishedBlock,
        retained::{THREAD_COST, cost},
    };

    /// A reader, and what it has got: the numbers of events, and those that were lost.
    struct Reader {
        stream: ResumedStream,
        got: Vec<u64>,
        lost: u64,
        position: Position,
    }

    fn store(retained: u64) -> Arc<EventStore> {
        let store = Arc::new(EventStore::new(ProcessId(0), 1, retained));
        store.identify(7);
        store
    }

    fn event(number: u64) -> PublishedBlock {
        let mut encoder = BlockEncoder::new(ThreadId(0));
        encoder.push_call(Ticks(number), FunctionId(0), CallKind::Enter, None);
        PublishedBlock::unpacked(encoder.finish().unwrap())
    }

    impl Reader {
        fn new(store: &Arc<EventStore>, after: Option<&Position>) -> Self {
            let begin = after.map_or(StreamBegin::Now, |after| StreamBegin::After(*after));
            Self::from(store, begin)
        }

        fn from(store: &Arc<EventStore>, begin: StreamBegin) -> Self {
            let reader = store.expect_reader();
            let stream = ResumedStream::new(Arc::clone(store), (begin, false), [], reader);
            Self {
                got: Vec::new(),
                lost: 0,
                position: stream.begin(),
                stream,
            }
        }

        /// Takes items, `most` at most, while there are some.
        async fn take(&mut self, most: usize) {
            for _ in 0..most {
                let next = self.stream.next();
                let next = tokio::time::timeout(std::time::Duration::ZERO, next).await;
                match next.ok().flatten().map(|(_, item)| item.loaded()) {
                    Some(StreamItem::Block(published)) => {
                        self.got.push(published.closed.block.first.0);
                        self.position = published.position.unwrap();
                    }
                    Some(StreamItem::Lost { events, position }) => {
                        self.lost += events;
                        self.position = position.unwrap();
                    }
                    Some(_) => {}
                    None => return,
                }
            }
        }
    }

    #[derive(Debug, Clone, Copy)]
    enum Step {
        Publish(usize),
        Take(usize),
        /// The reader comes again, with the position of the last block.
        Resume,
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (1..600_usize).prop_map(Step::Publish),
            (1..600_usize).prop_map(Step::Take),
            Just(Step::Resume),
        ];
        proptest::collection::vec(step, 1..20)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        /// Each event is taken once, in order, or counted as lost. Without a limit on retained
        /// events, none is lost, though the reader's queue is full now and then.
        #[test]
        fn each_event_comes_once_or_is_counted(steps in steps(), kept in 1..800_u64) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().unwrap();
            runtime.block_on(async {
                let limit = kept * cost(&event(0).closed.block) + 10_000;
                for (limit, may_lose) in [(limit, true), (u64::MAX, false)] {
                    let store = store(limit);
                    store.new_thread(1, String::new());
                    let mut reader = Reader::new(&store, None);
                    let (mut all, mut got, mut lost) = (0, Vec::new(), 0);
                    for step in &steps {
                        match *step {
                            Step::Publish(events) => for _ in 0..events {
                                store.publish(event(all));
                                all += 1;
                            },
                            Step::Take(most) => reader.take(most).await,
                            Step::Resume => {
                                got.append(&mut reader.got);
                                lost += reader.lost;
                                let position = Position::from_bytes(&reader.position.to_bytes());
                                let next = Reader::new(&store, position.as_ref());
                                assert!(next.stream.continues());
                                reader = next;
                            }
                        }
                    }
                    store.close();
                    reader.take(usize::MAX).await;
                    assert!(reader.stream.has_ended);
                    got.append(&mut reader.got);
                    lost += reader.lost;
                    assert!(got.is_sorted_by(|one, next| one < next));
                    assert!(may_lose || lost == 0);
                    assert_eq!(got.len() as u64 + lost, all);
                }
            });
        }
    }

    /// The next daemon has blocks of the same session, with other numbers.
    #[tokio::test]
    async fn a_later_store_finds_the_block_or_leaves_out_what_may_be_known() {
        let first = store(u64::MAX);
        first.new_thread(1, String::new());
        let mut reader = Reader::new(&first, None);
        (0..100).for_each(|number| first.publish(event(number)));
        reader.take(60).await;
        let position = reader.position;
        assert_eq!(reader.got.last(), Some(&(reader.got.len() as u64 - 1)));
        let after = reader.got.len() as u64;
        for (retained, session, continues, expected) in [
            // The block is there, and so is what came before it.
            (40..100, 7, true, after),
            // It is not: what begins later is new.
            (90..100, 7, false, 90),
            // Another session of the process has its own blocks, also after a reboot, when the
            // counter begins anew.
            (90..100, 8, false, 90),
            (2..9, 8, false, 2),
        ] {
            let later = store(u64::MAX);
            later.identify(session);
            later.new_thread(1, String::new());
            retained
                .clone()
                .for_each(|number| later.publish(event(number)));
            let mut reader = Reader::new(&later, Some(&position));
            assert_eq!(reader.stream.continues(), continues);
            later.publish(event(100));
            later.close();
            reader.take(usize::MAX).await;
            let all: Vec<u64> = retained.chain([100]).collect();
            let expected: Vec<u64> = all.into_iter().filter(|it| *it >= expected).collect();
            assert_eq!((reader.got, reader.lost), (expected, 0));
        }
        // A block was not in the segments, and is read from its ring again.
        let later = store(u64::MAX);
        later.new_thread(1, String::new());
        (after - 1..after + 5).for_each(|number| later.publish(event(number)));
        let before = Position::from_bytes(&{
            let mut bytes = position.to_bytes();
            bytes[32] ^= 1;
            bytes
        });
        // A reader that comes again before there was a block gets the same.
        let first = Reader::new(&later, before.as_ref()).stream.begin();
        for position in [before, Some(first)] {
            let mut reader = Reader::new(&later, position.as_ref());
            reader.take(100).await;
            assert_eq!(reader.got, (after..after + 5).collect::<Vec<_>>());
        }
    }

    /// A thread's block can come after those of others, and end before they do.
    #[tokio::test]
    async fn a_block_that_is_not_found_stands_for_all_times_before_it() {
        let [first, later] = [(); 2].map(|()| {
            let store = store(u64::MAX);
            store.new_thread(1, String::new());
            store
        });
        let mut reader = Reader::new(&first, None);
        for number in [100, 50] {
            first.publish(event(number));
        }
        reader.take(10).await;
        assert_eq!(reader.got, [100, 50]);
        for number in [100, 120] {
            later.publish(event(number));
        }
        let mut reader = Reader::new(&later, Some(&reader.position));
        reader.take(10).await;
        assert_eq!(reader.got, [120]);
        assert!(!reader.stream.continues());
    }

    #[tokio::test]
    async fn a_stream_begins_with_what_is_retained_since_a_moment() {
        for (retained, since, expected, lost) in [
            (100, 0, 0..100, 0),
            (100, 59, 60..100, 0),
            (100, 200, 0..0, 0),
            // Of what was dropped, that is lost which happened since then.
            (10, 59, 90..100, 31),
        ] {
            let limit = retained * cost(&event(0).closed.block) + THREAD_COST;
            let store = store(limit);
            store.new_thread(1, String::new());
            (0..100).for_each(|number| store.publish(event(number)));
            let mut reader = Reader::from(&store, StreamBegin::Since(Ticks(since)));
            store.close();
            reader.take(usize::MAX).await;
            assert_eq!((reader.got, reader.lost), (expected.collect(), lost));
        }
    }

    /// What a client makes up gets what is retained, and harms nothing.
    #[tokio::test]
    async fn made_up_positions_are_harmless() {
        let store = store(u64::MAX);
        store.new_thread(1, String::new());
        (0..10).for_each(|number| store.publish(event(number)));
        let real = Reader::new(&store, None).position.to_bytes();
        for at in 0..real.len() / 8 {
            for value in [0, 1, u64::MAX] {
                let mut bytes = real.clone();
                bytes[8 * at..8 * at + 8].copy_from_slice(&u64::to_le_bytes(value));
                let position = Position::from_bytes(&bytes);
                let mut reader = Reader::new(&store, position.as_ref());
                reader.take(100).await;
                assert!(reader.got.len() <= 10);
            }
        }
    }

    #[tokio::test]
    async fn threads_and_types_are_described_before_their_events() {
        let store = store(u64::MAX);
        let names = |from: u32| {
            for tid in from..from + 5 {
                store.new_thread(tid, format!("t{tid}"));
            }
        };
        names(0);
        let mut reader = Reader::new(&store, None);
        let mut seen = BTreeMap::new();
        // More than its queue holds.
        (0..1000).for_each(|number| store.publish(event(number)));
        names(100);
        store.close();
        while let Some((_, item)) = reader.stream.next().await {
            if let StreamItem::Thread(thread) = item {
                *seen.entry(thread.tid).or_insert(0) += 1;
            }
        }
        let expected = (0..5).chain(100..105).map(|tid| (tid, 1));
        assert_eq!(seen, expected.collect());
    }
}
