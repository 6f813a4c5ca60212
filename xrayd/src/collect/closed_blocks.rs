//! Tests of the facts that a thread decoder publishes with a block. A reader that unpacks the
//! blocks finds the same.

use std::{ops::Range, sync::Arc};

use proptest::prelude::*;
use shm_ring::{Data, Item, Sink, word};
use xray_trace::{
    analysis::Survey,
    container::{
        Chosen, ClosedBlock, ClosedPart, Completeness, FunctionSet, OpenCalls, Part, RecordedTime,
        StreamIndex, Writer,
    },
    model::{CallKind, FunctionId, ProcessId, ThreadId, Ticks, Trace},
};

use super::{
    CallSite, EventFilter, SiteKind, SiteTable, frame_budget::FrameBudget,
    thread_decoder::ThreadDecoder,
};
use crate::store::{EventStore, EventUses, Source, StreamItem, subscription};

const FUNCTIONS: u32 = 5;
const TOP: u64 = 0x7fff_0000;

/// A step of a thread, or of the session.
#[derive(Debug, Clone)]
enum Does {
    /// Calls a function, with a frame of so many bytes and so many arguments.
    Calls(u32, u64, usize),
    Returns,
    ReturnsByTailCall,
    /// The calls further in were left.
    ReturnsFrom(usize),
    /// The exit of a call that was entered before anything was seen.
    ReturnsAstray(u32),
    Custom(u32),
    Typed(u32, u32),
    Loses,
    /// The next events have the same time.
    StandsStill,
    /// The block is old, and is closed.
    Publish,
    /// A filter keeps some functions, or all.
    Filter(Option<Range<u32>>),
    /// Events become no blocks for a while.
    Pauses(bool),
    /// Older events of the ring were overwritten.
    Restarts,
}

fn does(disturbed: bool) -> impl Strategy<Value = Vec<Does>> {
    let does = prop_oneof![
        12 => (0..FUNCTIONS, 1..9_u64, 0..12_usize).prop_map(|(id, frame, args)| {
            Does::Calls(id, frame * 16, args.saturating_sub(5))
        }),
        9 => Just(Does::Returns),
        1 => Just(Does::ReturnsByTailCall),
        2 => (0..4_usize).prop_map(Does::ReturnsFrom),
        1 => (0..FUNCTIONS).prop_map(Does::ReturnsAstray),
        1 => (0..FUNCTIONS).prop_map(Does::Custom),
        1 => (0..FUNCTIONS, 0..3_u32).prop_map(|(id, kind)| Does::Typed(id, kind)),
        1 => Just(Does::Loses),
        3 => Just(Does::StandsStill),
        6 => Just(Does::Publish),
        1 => prop::option::of(0..FUNCTIONS).prop_map(|id| Does::Filter(id.map(|id| 0..id))),
        1 => any::<bool>().prop_map(Does::Pauses),
        1 => Just(Does::Restarts),
    ];
    let does = does.prop_map(move |does| match does {
        Does::Pauses(_) | Does::Restarts if !disturbed => Does::StandsStill,
        does => does,
    });
    prop::collection::vec(does, 0..250)
}

fn sites() -> SiteTable {
    let mut sites = SiteTable::new();
    for id in 0..FUNCTIONS {
        for (site, kind) in [
            (id, SiteKind::Call(CallKind::Enter)),
            (id + 100, SiteKind::Call(CallKind::Exit)),
            (id + 200, SiteKind::Call(CallKind::TailExit)),
            (id + 300, SiteKind::Custom),
            (id + 400, SiteKind::Typed),
        ] {
            let site = CallSite {
                name: site << 3 | 7,
                function: FunctionId(id),
                kind,
            };
            assert!(sites.insert(site, Ticks(0)));
        }
    }
    sites
}

/// The blocks that are published for a thread with these steps.
fn published(does: &[Does], room: &FrameBudget) -> Vec<Arc<ClosedBlock>> {
    let sites = sites();
    let output = EventStore::new(ProcessId(0), FUNCTIONS as usize, 0);
    let thread = output.new_thread(1, String::new());
    let (publisher, mut subscription) = subscription(1, None, 0);
    output.subscribe(publisher.sender(Source::default()));
    drop(publisher);
    let mut decoder = ThreadDecoder::new(thread, Ticks(0), room, Arc::default());
    let mut open: Vec<(u32, u64)> = Vec::new();
    let mut ticks = 0;
    let mut moves = true;
    for does in does {
        if std::mem::replace(&mut moves, true) {
            ticks += 10;
        }
        let call = |site: u32, sp| Item::Call {
            site: site << 3 | 7,
            ticks,
            sp,
            argument: None,
        };
        let data = |site: u32, sp, kind, bytes: Vec<u8>| {
            Item::Data(Box::new(Data {
                site: site << 3 | 7,
                ticks,
                sp,
                kind,
                size: 8,
                bytes,
            }))
        };
        let top = open.last().map_or(TOP, |(_, sp)| *sp);
        let item = match does.clone() {
            Does::Calls(id, frame, args) => {
                open.push((id, top - frame));
                let bytes = (0..args as u64).flat_map(|arg| (ticks + arg).to_le_bytes());
                match args {
                    0 => Some(call(id, top - frame)),
                    1 => Some(Item::Call {
                        site: id << 3 | 7,
                        ticks,
                        sp: top - frame,
                        argument: Some(ticks),
                    }),
                    _ => Some(data(id, top - frame, word::VALUES, bytes.collect())),
                }
            }
            Does::Returns => open.pop().map(|(id, sp)| call(id + 100, sp)),
            Does::ReturnsByTailCall => open.pop().map(|(id, sp)| call(id + 200, sp)),
            Does::ReturnsFrom(further_in) => {
                open.truncate(open.len().saturating_sub(further_in));
                open.pop().map(|(id, sp)| call(id + 100, sp))
            }
            Does::ReturnsAstray(id) => Some(call(id + 100, top - 8)),
            Does::Custom(id) => Some(data(id + 300, top - 8, 0, vec![1, 2])),
            Does::Typed(id, kind) => Some(data(id + 400, top - 8, kind, vec![3])),
            Does::Loses => Some(Item::Lost(3)),
            Does::StandsStill => {
                moves = false;
                None
            }
            Does::Publish => {
                decoder.publish(&output);
                None
            }
            Does::Filter(functions) => {
                let keep = functions.map(|range| {
                    Arc::new(EventFilter::new(
                        Some(vec![range]),
                        Ticks(0)..Ticks(u64::MAX),
                    ))
                });
                decoder.filter(keep);
                None
            }
            Does::Pauses(pauses) => {
                let keeps = EventUses {
                    blocks: !pauses,
                    sums: false,
                    counts: true,
                };
                decoder.keep(keeps, &output);
                None
            }
            Does::Restarts => {
                decoder.restart(&output);
                None
            }
        };
        if let Some(item) = item {
            decoder.sink(&sites, &output).take(item);
            decoder.settle(&output);
        }
    }
    decoder.publish(&output);
    output.close();
    let runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = { runtime }.build().unwrap();
    runtime.block_on(async {
        let mut blocks = Vec::new();
        while let Some((_, item)) = subscription.next().await {
            match item {
                StreamItem::Block(published) => blocks.push(published.closed),
                StreamItem::Lost { .. } => panic!("there is room for all blocks"),
                _ => {}
            }
        }
        blocks
    })
}

/// The index that is made while these blocks are written, whether it is complete, the entries, and
/// the trace.
fn written(blocks: &[Arc<ClosedBlock>]) -> (Vec<OpenCalls>, bool, u64, Trace) {
    let mut writer = Writer::new(Vec::new()).unwrap();
    let mut index = StreamIndex::new(0);
    let mut entries = 0;
    for closed in blocks {
        let ClosedBlock { block, stack, .. } = &**closed;
        writer.block(block).unwrap();
        entries += u64::from(closed.entries);
        let len = block.encoded_len() as u64;
        let sections = index.block(block.thread, len, stack.as_ref(), |id| id);
        assert!(sections.is_empty(), "few entries");
    }
    let is_complete = index.is_complete();
    writer.end(&writer.totals()).unwrap();
    let trace = Trace::read(writer.into_inner().as_slice()).unwrap();
    assert_eq!(trace.coverage().completeness, Completeness::Complete);
    (index.finish(), is_complete, entries, trace)
}

/// Checks that an index is what a reader of the trace makes. Returns whether there is one.
fn check(blocks: &[Arc<ClosedBlock>]) -> Result<bool, TestCaseError> {
    let (index, is_complete, entries, trace) = written(blocks);
    let survey = Survey::new(&trace, 0);
    prop_assert_eq!(entries, survey.calls);
    for closed in blocks {
        prop_assert_eq!(&closed.functions, &FunctionSet::of(closed.block.events()));
    }
    if is_complete {
        prop_assert_eq!(index, survey.index);
    }
    Ok(is_complete)
}

proptest! {
    /// Also for a reader that subscribes later.
    #[test]
    fn the_index_of_a_stream_is_that_of_its_trace(does in does(false), skipped in 0..4_usize) {
        let blocks = published(&does, &FrameBudget::new());
        let later = &blocks[skipped.min(blocks.len())..];
        prop_assert!(check(later)?);
    }

    /// Pauses, gaps, and threads without room for all of their calls: the index may be
    /// given up, but it is never wrong.
    #[test]
    fn a_stream_has_the_right_index_or_none(
        does in does(true),
        skipped in 0..4_usize,
        frames in prop_oneof![1..6_usize, Just(1 << 10)],
        paused in any::<bool>(),
    ) {
        let mut blocks = published(&does, &FrameBudget::with(1 << 10, frames, 32));
        blocks.drain(..skipped.min(blocks.len()));
        if paused && blocks.len() > 3 {
            // The queue was full.
            blocks.remove(2);
            let (_, _, entries, trace) = written(&blocks);
            prop_assert_eq!(entries, Survey::new(&trace, 0).calls);
            return Ok(());
        }
        check(&blocks)?;
    }

    /// A recording of some functions from a moment on: with the facts it is the same as without,
    /// and its facts are right.
    #[test]
    fn a_recording_is_the_same_whether_blocks_are_unpacked_or_not(
        does in does(false),
        wanted in prop_oneof![Just(FUNCTIONS), 0..FUNCTIONS],
        since in prop_oneof![Just(0_u64), 0..1500_u64],
        long in prop::option::of(0..2500_u64),
    ) {
        let time = RecordedTime {
            since: Ticks(since),
            until: long.map(|long| Ticks(since + long)),
        };
        let is_wanted = |id: FunctionId| id.0 < wanted;
        let (mut quick, mut slow) = (Chosen::default(), Chosen::default());
        let mut kept = Vec::new();
        for closed in published(&does, &FrameBudget::new()) {
            let ClosedPart { closed: part, lost } = quick.of_closed(&closed, time, is_wanted);
            let other = slow.of(&closed.block, time, is_wanted);
            let block = part.as_ref().map(|part| part.block.clone());
            prop_assert_eq!(Part { block, lost }, other);
            prop_assert_eq!(quick.take_excluded(), slow.take_excluded());
            prop_assert_eq!(quick.is_idle(), slow.is_idle());
            kept.extend(part.map(Arc::new));
        }
        prop_assert!(check(&kept)?);
    }
}

/// A recording of all functions of a thread that nests properly unpacks nothing.
#[test]
fn a_recording_of_everything_passes_blocks_on() {
    let mut does = Vec::new();
    for round in 0..10 {
        does.extend([Does::Calls(0, 64, 0), Does::Calls(1, 32, 2), Does::Returns]);
        if round % 2 == 1 {
            does.extend([Does::Returns, Does::Returns, Does::Publish]);
        } else {
            does.push(Does::Publish);
        }
    }
    let mut chosen = Chosen::default();
    let time = RecordedTime {
        since: Ticks(0),
        until: None,
    };
    let blocks = published(&does, &FrameBudget::new());
    assert_eq!(blocks.len(), 10);
    for closed in blocks {
        assert_eq!(closed.block.thread, ThreadId(0));
        let part = chosen.of_closed(&closed, time, |_| true);
        let stack = part.closed.and_then(|part| part.stack);
        // Blocks that were unpacked do not report that calls nest.
        assert!(stack.is_some_and(|stack| stack.nests));
    }
}
