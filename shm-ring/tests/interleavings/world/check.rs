//! The check at the end of a schedule: each event came as it was tried, or was counted as lost.

use std::collections::BTreeSet;

use shm_ring::{
    Content, Data, Item, Outcome,
    layout::{bucket, control, slot},
};

use super::{Attempt, Start, TID, World};

// === impl World ===

impl World<'_> {
    /// Compares the items that the consumer read with the attempts.
    pub(super) fn check(&self, start: Start) {
        let attempts = self.attempts.borrow();
        let items = self.items.borrow();
        let earlier = items
            .iter()
            .filter(|i| matches!(i, Item::Call { site: 1, .. }))
            .count();
        if self.newest {
            // The last chunk that is kept whole may hold an attempt's words.
            let most = start.calls.min((self.geometry.chunks() - 2) * 449 - 16);
            assert!(earlier as u64 >= most, "{earlier} of what was there before");
        } else {
            assert_eq!(earlier as u64, start.undrained, "what was there before");
        }
        let word = |place: u64| self.words[usize::try_from(place / 8).unwrap()].get();
        let mut reported = word(self.geometry.bucket_offset(0) + bucket::LOST);
        if start.paused {
            assert_eq!((reported, self.table.owner(0)), (0, TID), "it has its slot");
        }
        let mut waited = self.table.unreported_wait(0);
        let (mut order, mut there) = (Vec::new(), BTreeSet::new());
        for item in items.iter() {
            let (site, ticks, sp, content) = match item {
                Item::Lost(count) => {
                    reported += count;
                    continue;
                }
                Item::Waited(ticks) => {
                    waited += u64::from(*ticks);
                    continue;
                }
                Item::Call { site: 1, .. } => continue,
                &Item::Call {
                    site,
                    ticks,
                    sp,
                    argument,
                } => {
                    let content = argument.map_or(Content::Nothing, Content::Argument);
                    (site, ticks, sp, content)
                }
                Item::Data(data) => {
                    let Data {
                        site,
                        ticks,
                        sp,
                        kind,
                        size,
                        bytes,
                    } = (**data).clone();
                    let content = Content::Payload { kind, size, bytes };
                    (site, ticks, sp, content)
                }
            };
            let number = usize::try_from((site - 101) / 2).unwrap();
            let attempt = &attempts[number];
            assert!(there.insert(number), "{number} comes twice: {items:?}");
            assert_eq!((sp, &content), (attempt.sp, &attempt.content), "{number}");
            let jumped = attempt.ended == 0;
            assert!(
                ticks >= attempt.begun && (jumped || ticks <= attempt.ended),
                "{ticks} {attempt:?}"
            );
            order.push(number);
        }
        for (number, attempt) in attempts.iter().enumerate() {
            match attempt.outcome {
                Outcome::Recorded => {
                    assert!(there.contains(&number), "{number} is missing: {items:?}")
                }
                Outcome::Lost | Outcome::Robbed => {
                    assert!(!there.contains(&number), "{number} was counted and came")
                }
                Outcome::UnderWay => assert_eq!(attempt.ended, 0),
                Outcome::Untraced => {
                    assert!(start.deadline_over && !self.table.is_live());
                    assert!(!there.contains(&number), "{number} came after the close");
                }
            }
        }
        let mut latest = 0;
        for &number in &order {
            let Attempt { begun, ended, .. } = attempts[number];
            assert!(
                ended == 0 || ended >= latest,
                "{number} was over before one before it began: {order:?}"
            );
            latest = latest.max(begun);
        }
        // The rest of a context whose place was taken is a hole, which counts once.
        let lost = attempts
            .iter()
            .filter(|a| matches!(a.outcome, Outcome::Lost | Outcome::Robbed))
            .count() as u64;
        let left = attempts.iter().filter(|a| a.ended == 0).count() as u64;
        // So may one that had reserved words before another context closed recording.
        let untraced = |a: &&Attempt| a.outcome == Outcome::Untraced;
        let left = left + attempts.iter().filter(untraced).count() as u64;
        // A context that was left may have been counted as a hole, or have left no trace.
        assert!(
            (lost..=lost + left).contains(&reported),
            "{reported} reported, {lost} lost, {left} left"
        );
        let waits: u64 = attempts.iter().map(|attempt| attempt.waited).sum();
        // A context that was left may have taken a wait that it was about to report with it.
        assert!(
            waited == waits || waited < waits && left > 0,
            "{waited} ticks reported, {waits} waited"
        );
        let line = self.geometry.control_offset(0);
        let busy = word(line + control::BUSY);
        assert!(
            busy == 0 || left > 0,
            "{busy:#x} is left: {:?}",
            attempts
                .iter()
                .map(|a| (a.sp, a.begun, a.ended, a.outcome))
                .collect::<Vec<_>>()
        );
        if !self.table.is_live() {
            assert!(self.table.closed_at() > 0);
            assert!(self.table.owner(0) == slot::PAUSED);
            assert!(!self.table.is_parked(0), "the head is put back");
        }
        let started = word(line + control::STARTED);
        let released = word(line + control::RELEASED);
        if self.newest && left == 0 {
            let held = started - released;
            assert!(held < self.geometry.chunks(), "{held} chunks: none is free");
        }
    }
}
