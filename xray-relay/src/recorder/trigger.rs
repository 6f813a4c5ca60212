//! The trigger of a policy: a snapshot of each moment at which a condition is met.

use std::io::Write as _;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::{Instant, MissedTickBehavior, interval};
use tokio_stream::iter;
use tonic::Streaming;
use xrayd_proto::v1::trigger_event::Event;
use xrayd_proto::v1::{
    PolicyTrigger, TraceChunk, TriggerDone, TriggerEvent, TriggerMissed, TriggerOfPolicy,
    TriggerRequest,
};

use super::{Backoff, Order, is_stopped};
use crate::daemon::Daemon;
use crate::firings::Firing;
use crate::losses::Loss;
use crate::store::{Place, Recording, WatchMark};
use crate::utc;

/// How often the relay notes that it waits for the moments of a trigger.
const MARK_EVERY: Duration = Duration::from_secs(5);
/// How long a firing that is under way may take when the recorder is stopped.
const REST_TIME: Duration = Duration::from_secs(5);

/// Why the daemon ends the call for a trigger.
const NO_MORE: &str = "the policy has the trigger no more";
/// The time without a further firing after which a recorder that is stopped ends.
const QUIET_TIME: Duration = Duration::from_millis(300);
/// The time between two lines about moments that have no firing.
const MISSED_EVERY: Duration = Duration::from_secs(60);

/// Writes snapshots until the recorder is stopped. `index` is the trigger's among those of the
/// policy.
pub(crate) async fn run(
    daemon: Daemon,
    place: Place,
    (index, trigger): (u32, PolicyTrigger),
    mut orders: watch::Receiver<Order>,
) {
    let number = index.saturating_add(1);
    let mark = place.watch_mark(number);
    let mut backoff = Backoff::new();
    // The time since when the trigger is not armed, and why.
    let mut gap = mark
        .touched()
        .map(|until| (until, "no relay waited for the trigger".to_owned()));
    loop {
        let had_gap = gap.is_some();
        let mut firings = Firings {
            place: &place,
            number,
            trigger: &trigger,
            current: None,
            missed: TriggerMissed::default(),
            missed_at: None,
        };
        let ended = wait(&daemon, index, &mut firings, &mark, &mut orders, &mut gap).await;
        if had_gap && gap.is_none() {
            backoff = Backoff::new();
        }
        if let Err(why) = ended {
            gap.get_or_insert_with(|| (utc::now(), why));
            if backoff.wait(&mut orders).await {
                continue;
            }
        }
        break;
    }
    // If the relay ends, the next one notes the gap.
    if *orders.borrow() == Order::End {
        if let Some((since, why)) = gap.filter(|(_, why)| why != NO_MORE) {
            place.note(&Loss::new(0, (since, utc::now()), 0, why));
        }
        mark.remove();
    }
}

/// Waits for the moments of a trigger until the recorder is stopped. A gap ends when the trigger is
/// armed.
///
/// # Errors
/// Something failed, and may work later.
async fn wait(
    daemon: &Daemon,
    index: u32,
    firings: &mut Firings<'_>,
    mark: &WatchMark,
    orders: &mut watch::Receiver<Order>,
    gap: &mut Option<(Duration, String)>,
) -> Result<(), String> {
    let request = TriggerRequest {
        of_policy: Some(TriggerOfPolicy {
            policy: firings.place.policy.clone(),
            index,
            expected: Some(firings.trigger.clone()),
        }),
        ..TriggerRequest::default()
    };
    let mut rpc = daemon.rpc();
    let begin = async {
        // The daemon admits few requests of a user at a time. This one ends when all is armed.
        let _place = daemon.place().await;
        rpc.trigger(iter([request])).await
    };
    let begun = tokio::select! {
        () = is_stopped(orders) => return Ok(()),
        begun = begin => begun,
    };
    let mut events = begun
        .map_err(|status| failed(status.message()))?
        .into_inner();
    let mut marks = interval(MARK_EVERY);
    marks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let waited = loop {
        tokio::select! {
            event = next(&mut events) => match event {
                Ok(Event::Armed(_)) => {
                    if let Some((since, why)) = gap.take() {
                        let loss = Loss::new(0, (since, utc::now()), 0, why);
                        firings.place.note(&loss);
                    }
                    mark.touch();
                }
                Ok(Event::Over(_)) => break Err(NO_MORE.to_owned()),
                Ok(event) => firings.take(event),
                Err(why) => break Err(why),
            },
            // The moment of a firing that is under way is in no file so far.
            _ = marks.tick(), if gap.is_none() && firings.current.is_none() => mark.touch(),
            () = is_stopped(orders) => {
                firings.end_current(&mut events).await;
                mark.touch();
                break Ok(());
            }
        }
    };
    firings.give_up("the daemon ended the snapshot");
    firings.note_missed();
    waited
}

/// The next event.
///
/// # Errors
/// No more events come.
async fn next(events: &mut Streaming<TriggerEvent>) -> Result<Event, String> {
    match events.message().await {
        Ok(Some(TriggerEvent { event: Some(event) })) => Ok(event),
        Ok(_) => Err(failed("the daemon was restarted")),
        Err(status) => Err(failed(status.message())),
    }
}

fn failed(why: &str) -> String {
    format!("the trigger was not armed: {why}")
}

/// The firings of a trigger.
struct Firings<'a> {
    place: &'a Place,
    number: u32,
    trigger: &'a PolicyTrigger,
    /// The firing that the daemon reports now, and its file.
    current: Option<(Firing, Snapshot)>,
    /// The moments without a firing that are in no line so far, and the time of the latest line.
    missed: TriggerMissed,
    missed_at: Option<Instant>,
}

/// The snapshot of a firing.
enum Snapshot {
    /// Nothing of it has arrived.
    Awaited,
    Begun(Recording),
    /// Why it cannot be written.
    Failed(String),
}

// === impl Firings ===

impl Firings<'_> {
    fn take(&mut self, event: Event) {
        match event {
            Event::Fired(fired) => {
                let firing = Firing::new(self.number, self.trigger, fired);
                self.current = Some((firing, Snapshot::Awaited));
            }
            Event::Snapshot(chunk) => {
                if let Some((firing, snapshot)) = &mut self.current {
                    let place = self.place.of_process(firing.pid);
                    snapshot.write(&place, self.number, &chunk);
                }
            }
            Event::Done(TriggerDone { refusal, .. }) => {
                let why = refusal.map(|refusal| refusal.message);
                if let Some((firing, snapshot)) = self.current.take() {
                    self.finish(firing, snapshot, why);
                }
            }
            Event::Missed(missed) => {
                self.missed.skipped = self.missed.skipped.saturating_add(missed.skipped);
                self.missed.unjudged = self.missed.unjudged.saturating_add(missed.unjudged);
                let before = self.missed_at;
                if before.is_none_or(|before| before.elapsed() >= MISSED_EVERY) {
                    self.note_missed();
                }
            }
            // A policy switches nothing.
            Event::Armed(_) | Event::Switched(_) | Event::Ended(_) | Event::Over(_) => {}
        }
    }

    /// Notes the firing, with its file, or with the reason why there is none.
    fn finish(&self, mut firing: Firing, snapshot: Snapshot, refused: Option<String>) {
        let file = match (snapshot, refused) {
            (_, Some(why)) | (Snapshot::Failed(why), None) => Err(why),
            (Snapshot::Awaited, None) => Err("the daemon sent no snapshot".to_owned()),
            (Snapshot::Begun(recording), None) => recording
                .finish()
                .map_err(|error| format!("cannot finish a file: {error}")),
        };
        firing.end(file.as_deref().map_err(Clone::clone));
        self.place.note_firing(&firing);
    }

    /// Notes the moments that have no firing.
    fn note_missed(&mut self) {
        let missed = std::mem::take(&mut self.missed);
        if missed.skipped > 0 || missed.unjudged > 0 {
            let firing = Firing::missed(self.number, &missed);
            self.place.note_firing(&firing);
            self.missed_at = Some(Instant::now());
        }
    }

    /// Waits a while for the end of the firing that is under way, and for those that wait in the
    /// daemon.
    async fn end_current(&mut self, events: &mut Streaming<TriggerEvent>) {
        let ends = async {
            loop {
                let event = match self.current {
                    Some(_) => next(events).await,
                    None => match tokio::time::timeout(QUIET_TIME, next(events)).await {
                        Ok(event) => event,
                        Err(_) => return,
                    },
                };
                match event {
                    Ok(event) => self.take(event),
                    Err(_) => return,
                }
            }
        };
        // A snapshot that is not whole by then is noted without a file.
        let _ = tokio::time::timeout(REST_TIME, ends).await;
        self.give_up("the relay ended");
    }

    /// Notes the firing that is under way, without its snapshot.
    fn give_up(&mut self, why: &str) {
        if let Some((firing, _)) = self.current.take() {
            self.finish(firing, Snapshot::Failed(why.to_owned()), None);
        }
    }
}

// === impl Snapshot ===

impl Snapshot {
    /// Writes a piece. After an error the rest of the snapshot is left out.
    fn write(&mut self, place: &Place, number: u32, chunk: &TraceChunk) {
        let cannot = |error: std::io::Error| Self::Failed(format!("cannot write a file: {error}"));
        if let Self::Awaited = self {
            *self = place.begin_moment(number).map_or_else(cannot, Self::Begun);
        }
        if let Self::Begun(recording) = self
            && let Err(error) = recording.write_all(&chunk.data)
        {
            *self = cannot(error);
        }
    }
}
