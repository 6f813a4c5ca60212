//! Samples of what tracing costs: how much each thread has recorded or added up, and of which
//! functions. The target's threads go on meanwhile.

use std::{cmp::Reverse, collections::HashMap, sync::Arc, time::Instant};

use shm_ring::newest::{self, EventShare, RingCopy};

use super::{Drain, rings::Rings};
use crate::{
    collect::{
        call_reading::CallReading,
        sample::{self, Counting, Edge, Look, RingId, RingSample, Sample, Seen},
    },
    sys::{PriorityBoost, ticks_now},
    target::cpu_time,
};

/// The threads of a sample of sums that were not in the sample before.
const OTHERS: usize = 4;
/// Events without a function in a sample from which on a budget does without sums, if they are more
/// than one part in this many.
const MOST_NAMELESS: u64 = 1000;
const NAMELESS_PART: u64 = 8;

impl Drain {
    /// Samples how much each thread recorded or added up, and which functions those did that
    /// recorded or added up the most since the last sample.
    pub(super) fn sample(&mut self, look: &Look) -> Sample {
        self.settle_mode();
        let rings = &self.owners.rings;
        match look {
            Look::Begin(_) | Look::All(..) if !rings.newest && !rings.adds_up => self.flush(),
            _ => self.owners.discover(),
        }
        let rings = &mut self.owners.rings;
        match rings.adds_up {
            true => sample_of_sums(rings, look),
            false => sample_of_rings(rings, look),
        }
    }
}

/// A sample of what threads add up. A window begins or ends here, with the readings of its sums.
fn sample_of_sums(rings: &mut Rings, look: &Look) -> Sample {
    let urgent = match look {
        Look::Begin(_) | Look::All(..) => Some(PriorityBoost::begin()),
        Look::Newest(_) | Look::Nothing => None,
    };
    let order: Vec<u32> = rings.order.clone();
    let read = chosen(rings, &order, look);
    let taken = (Instant::now(), ticks_now());
    let ran = cpu_time::of_process(rings.pid);
    let edge = match look {
        Look::Begin(window) => Some(window.begin()),
        Look::All(_, window) => Some(window.end()),
        Look::Newest(_) | Look::Nothing => None,
    };
    let readings = read.iter().map(|index| {
        let state = rings.slots.profile_state(*index);
        let numbers = rings.slots.call_numbers(*index);
        (*index, (CallReading::new(numbers), state))
    });
    let mut readings: HashMap<u32, _> = readings.collect();
    let edge = edge.map(|edge| Edge {
        late: ticks_now().0.saturating_sub(edge.at.0),
        ..edge
    });
    drop(urgent);
    if !readings.is_empty() {
        rings.slots.let_go_profiles();
    }
    let (mut samples, mut named, mut nameless) = (Vec::new(), 0_u64, 0_u64);
    for &index in &order {
        let Some(ring) = rings.by_slot.get_mut(&index) else {
            continue;
        };
        if ring.is_left() {
            ring.reading = None;
            continue;
        }
        let Some(thread) = rings.decoders.get_mut(ring.owner).map(|owner| owner.thread) else {
            continue;
        };
        let id: RingId = (index, thread);
        let (mut seen, mut thread_ran) = (None, None);
        let reading = readings.remove(&index).map(|(reading, state)| {
            ring.added.follow(state);
            if let Some(before) = look.before(id).and(ring.reading.as_ref()) {
                let find = |site| Some(rings.sites.find(site, taken.1)?.function);
                let (tally, others) = reading.since(before, find);
                named = named.saturating_add(tally.events);
                nameless = nameless.saturating_add(others);
                seen = Some(Seen::Whole(tally));
            }
            let tid = rings
                .output
                .with_retained(|retained| Some(retained.thread(thread)?.tid));
            thread_ran = tid.and_then(|tid| cpu_time::of_thread(rings.pid, tid));
            reading
        });
        // The next sample shows nothing of a thread that was not read here.
        ring.reading = reading;
        samples.push(RingSample {
            ring: id,
            given: ring.added.events(),
            ran: thread_ran,
            seen,
        });
    }
    if nameless > MOST_NAMELESS && nameless > named / NAMELESS_PART {
        rings.record_events(
            "the threads' profiles are so full that a budget cannot tell functions apart",
        );
    }
    Sample {
        sites: Arc::clone(&rings.sites),
        taken,
        ran,
        edge,
        rings: samples,
    }
}

/// The rings that a sample of sums reads: those of the window's begin, or those in which the most
/// has happened in recent samples. Threads that add up nothing now are included: their functions
/// may be suppressed. Those of the last sample come first, because only their growth is known, and
/// a few others in turn.
fn chosen(rings: &mut Rings, order: &[u32], look: &Look) -> Vec<u32> {
    let (mut known, mut others) = (Vec::new(), Vec::new());
    for &index in order {
        let state = rings.slots.profile_state(index);
        let Some(ring) = rings.by_slot.get_mut(&index).filter(|ring| !ring.is_left()) else {
            continue;
        };
        let more = ring.added.follow(state);
        ring.added.end_sample(more);
        let of = match ring.reading {
            Some(_) => &mut known,
            None => &mut others,
        };
        of.push((ring.added.recent(), index));
    }
    let rank = |(recent, _): &(u64, u32)| Reverse(*recent);
    known.sort_by_key(rank);
    match look {
        Look::Nothing => return Vec::new(),
        Look::All(..) => others.clear(),
        Look::Newest(_) | Look::Begin(_) => {
            // A stable sort: threads of one rank have their turns.
            let turn = rings.sampled_first % others.len().max(1);
            rings.sampled_first = rings.sampled_first.wrapping_add(OTHERS);
            others.rotate_left(turn);
            others.sort_by_key(rank);
            let room = sample::MOST_COPIES.saturating_sub(others.len().min(OTHERS));
            known.truncate(room);
        }
    }
    let all = known.into_iter().chain(others);
    all.map(|(_, index)| index)
        .take(sample::MOST_COPIES)
        .collect()
}

/// A sample of what threads record.
fn sample_of_rings(rings: &mut Rings, look: &Look) -> Sample {
    let geometry = rings.geometry();
    let samples = rings.order.iter().filter_map(|index| {
        let ring = rings.by_slot.get(index).filter(|ring| !ring.is_left())?;
        let thread = rings.decoders.get(ring.owner)?.thread;
        let words = newest::Words::of(&rings.slots.rings, geometry, *index).begun;
        Some(RingSample {
            ring: (*index, thread),
            given: words.saturating_add(rings.slots.lost(*index)),
            ran: None,
            seen: None,
        })
    });
    let mut samples: Vec<RingSample> = samples.collect();
    // Before the copies, which take longer. Newer events in the copies do not count.
    let (taken, ran) = (
        (Instant::now(), ticks_now()),
        cpu_time::of_process(rings.pid),
    );
    // A new ring has no increase before its second sample.
    let more = |sample: &RingSample| {
        let before = look.before(sample.ring)?;
        Some(sample.given.saturating_sub(before)).filter(|more| *more > 0)
    };
    samples.sort_by_cached_key(|sample| Reverse(more(sample)));
    for sample in samples.iter_mut().take(sample::MOST_COPIES) {
        let index = sample.ring.0;
        sample.seen = more(sample).and_then(|more| match look {
            Look::All(..) if !rings.newest => None,
            Look::All(..) => {
                let chunk = geometry.chunk_bytes();
                let most = (sample::MOST_COPIED / chunk).max(sample::CHUNKS);
                let chunks = (sample::CHUNKS + more / (chunk / 8)).min(most);
                let copy = RingCopy::take(&rings.slots.rings, geometry, index, chunks);
                Some(seen(rings, copy, sample, more))
            }
            _ => {
                let copy = RingCopy::take(&rings.slots.rings, geometry, index, sample::CHUNKS);
                Some(seen(rings, copy, sample, more))
            }
        });
        // Threads that record nothing now are included: their functions may be suppressed.
        let thread = sample.ring.1;
        let tid = rings
            .output
            .with_retained(|retained| Some(retained.thread(thread)?.tid));
        sample.ran = tid.and_then(|tid| cpu_time::of_thread(rings.pid, tid));
    }
    for sample in &mut samples {
        let owner = rings.by_slot.get(&sample.ring.0).map(|ring| ring.owner);
        let decoder = owner.and_then(|owner| rings.decoders.get_mut(owner));
        let lost = rings.slots.lost(sample.ring.0);
        let counting = match look {
            Look::Begin(window) => Some(Counting::within(window, lost)),
            Look::Newest(_) | Look::All(..) | Look::Nothing => None,
        };
        let counted = decoder.and_then(|decoder| decoder.count_events(counting));
        // Rings that are not read are not counted either.
        if let (Look::All(..), Some(counted), false) = (look, counted, rings.newest) {
            sample.seen = Some(Seen::Counted(counted.with_lost(lost)));
        }
    }
    Sample {
        sites: Arc::clone(&rings.sites),
        taken,
        ran,
        edge: None,
        rings: samples,
    }
}

/// A copy of a ring that was given `more` words since the last sample.
fn seen(rings: &Rings, copy: RingCopy, sample: &RingSample, more: u64) -> Seen {
    let index = sample.ring.0;
    // Events that the ring had no room for are no words of it.
    let lost = rings.slots.lost(index);
    let missing = copy.words().overwritten;
    let is_whole = missing <= sample.given.saturating_sub(more).saturating_sub(lost);
    let should_have = (!is_whole)
        .then(|| EventShare::of(&rings.slots.rings, rings.geometry(), index, more).events_in(more));
    Seen::Copy(copy, should_have)
}
