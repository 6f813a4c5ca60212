//! The Trigger call: it waits until conditions are met, and does what the client requested.
//!
//! ```text
//!  matches ───────► fired ─► switches ─► wait until `after` is over ─► snapshot in pieces ─► done
//!  long calls ─► judged by the time on the processor ─► matches
//!  ten times a second, beside it: new processes are armed, ended ones are reported
//!  the client: fire · gone
//!  time: the period of the limit is over · expired
//! ```
//!
//! It does one thing at a time, except that it looks for new processes beside everything else. A
//! process that hangs holds up only that look, and with it the reports of new and ended processes.
//! A slow client is waited for here, and only here. Matches that come meanwhile wait, as many as
//! the limit allows, and further ones are counted.

mod call_times;
mod plan;
mod watched;

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use tokio::{
    sync::mpsc,
    task::{JoinError, JoinSet, spawn_blocking},
    time::{Instant as At, sleep, sleep_until},
};
use tonic::{Code, Status, Streaming};
use xray_trace::model::Ticks;
use xrayd_proto::v1::{self, trigger_event::Event, trigger_over::Why};

use self::plan::SnapshotPlan;
pub(super) use self::{plan::Plan, watched::Watched};
use super::{
    admission::{Admitted, PolicyTriggerKey},
    convert, error,
    fetch::{CHUNKS, READER_PATIENCE, send_shot},
    live::Sender,
    run_records::Unrecorded,
    workers::{WorkerKind, Workers},
};
use crate::{
    process::{Firing, Trigger},
    refusal::{Reason, Refusal},
    rpc::authorise::Authority,
    target::Ending,
    triggers::{LongCalls, Match, Matches, Value},
    types::Reach,
};

/// The looks for new and ended processes. The pause is [`LOOK_SHARE`] times the duration of the
/// last look, within the two bounds.
const LOOK_SHARE: u32 = 20;
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LONGEST_LOOK_PAUSE: Duration = Duration::from_secs(1);
/// The pause between two looks of the trigger of a policy, which is armed for as long as the daemon
/// runs.
const LOOK_FOR_POLICY: Duration = Duration::from_millis(500);
/// The time between two reports of what was missed.
const REPORT_EVERY: Duration = Duration::from_secs(60);
/// The same for the trigger of a policy, whose client writes everything down.
const REPORT_FOR_POLICY: Duration = Duration::from_secs(5);

/// The state of a Trigger call.
#[derive(Debug)]
pub(super) struct Triggering {
    plan: Plan,
    /// Used only on threads that may block.
    watched: Arc<Watched>,
    hits: Matches,
    long_calls: LongCalls,
    sender: Sender<v1::TriggerEvent>,
    /// Threads for work that may block.
    workers: Workers,
    authority: Authority,
    /// Firings so far.
    fired: u32,
    /// Times at which one more firing becomes possible, in ascending order.
    given_back: VecDeque<Instant>,
    /// The time at which the call expires. Set by `serve`.
    expires: Option<Instant>,
    /// The last report of calls that could not be judged.
    unjudged_at: Option<Instant>,
    /// The number of threads in the last report whose switches cannot be recorded.
    unrecorded: u32,
}

/// Matches and long calls since the last firing that caused none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Missed {
    /// Matches beyond the limit.
    skipped: u64,
    /// Long calls that could not be judged.
    unjudged: u64,
}

/// The client is gone, or has the reason why no more events come.
#[derive(Debug)]
struct Gone;

type Sent<T = ()> = Result<T, Gone>;

/// The look for new processes that is under way, if there is one. Its result is true if no
/// condition can be met any more.
type Looking = JoinSet<Result<bool, JoinError>>;

// === impl Missed ===

impl Missed {
    fn take(trigger: &Trigger) -> Self {
        Self {
            skipped: trigger.take_skipped(),
            unjudged: trigger.take_unjudged(),
        }
    }
}

// === impl Triggering ===

impl Triggering {
    pub(super) fn new(
        plan: Plan,
        (watched, hits, long_calls): (Watched, Matches, LongCalls),
        sender: Sender<v1::TriggerEvent>,
        (workers, authority): (Workers, Authority),
    ) -> Self {
        Self {
            plan,
            unjudged_at: None,
            unrecorded: watched.unrecorded().threads,
            watched: Arc::new(watched),
            hits,
            long_calls,
            sender,
            workers,
            authority,
            fired: 0,
            given_back: VecDeque::new(),
            expires: None,
        }
    }

    /// Runs until the trigger is over or the client leaves, then undoes all changes.
    pub(super) async fn run(
        mut self,
        requests: Streaming<v1::TriggerRequest>,
        _places: (Admitted, Option<Admitted<PolicyTriggerKey>>),
    ) {
        // The client has the reason of an early end, or it is gone.
        let _told = self.serve(requests).await;
        let watched = Arc::clone(&self.watched);
        // This does not count against the user's limit on calls, because it has to be done. The
        // panic hook has logged a panic.
        let end = move || watched.end();
        let _ended = self
            .workers
            .run(WorkerKind::Release, self.authority.caller().uid, end)
            .await;
    }

    async fn serve(&mut self, mut requests: Streaming<v1::TriggerRequest>) -> Sent {
        let began = Instant::now();
        let expire = self.plan.expire;
        self.expires = expire.and_then(|expire| began.checked_add(expire));
        let expires = self.expires;
        let mut look_at = began + LOOK_EVERY;
        // A look that still waits for a thread ends with this.
        let mut looking = Looking::new();
        let mut looked_at = began;
        // Ends with this. It does not wait for the client, because the kernel's rings fill up.
        let mut reading_runs = JoinSet::new();
        if self.watched.reads_runs() {
            let of = || (Arc::clone(&self.watched), self.workers.clone());
            reading_runs.spawn(read_runs(of(), self.authority.caller().uid));
            reading_runs.spawn(record_new_threads(of(), self.authority.caller().uid));
        }
        if self.watched.waits_for_processes() {
            let of = (Arc::clone(&self.watched), self.workers.clone());
            reading_runs.spawn(keep_looking(of, self.authority.caller().uid));
        }
        let mut may_ask = true;
        loop {
            let give_back = self.given_back.front().copied();
            let sender = self.sender.clone();
            tokio::select! {
                () = sender.closed() => return Err(Gone),
                hit = self.hits.next() => {
                    let Some(hit) = hit else { return Err(Gone) };
                    self.fire(hit).await?;
                    if self.plan.period.is_none() && self.fired >= self.plan.limit {
                        return self.over(Why::Limit).await;
                    }
                }
                calls = self.long_calls.next() => {
                    if calls.is_empty() {
                        return Err(Gone);
                    }
                    self.blocking(move |watched| watched.judge(calls)).await?;
                }
                // The panic hook has logged the panic.
                Some(_) = reading_runs.join_next() => return self.fail(error::bug()).await,
                () = at(expires) => return self.over(Why::Expired).await,
                () = at(give_back) => {
                    self.given_back.pop_front();
                    self.blocking(|watched| watched.trigger().give_back()).await?;
                }
                request = requests.message(), if may_ask => match request {
                    Ok(Some(v1::TriggerRequest { fire, .. })) => {
                        if fire {
                            self.blocking(|watched| watched.trigger().fire()).await?;
                        }
                    }
                    // A client that has ended its requests may still receive events.
                    Ok(None) => may_ask = false,
                    Err(_) => return Err(Gone),
                },
                () = at(Some(look_at)), if looking.is_empty() => {
                    looked_at = Instant::now();
                    self.begin_to_look(&mut looking);
                }
                Some(is_over) = looking.join_next() => {
                    let is_over = is_over.and_then(std::convert::identity);
                    if self.end_look(is_over).await? {
                        return self.over(Why::Ended).await;
                    }
                    let pause = looked_at.elapsed().saturating_mul(LOOK_SHARE);
                    look_at = Instant::now() + pause.clamp(look_every(&self.watched), LONGEST_LOOK_PAUSE);
                }
            }
        }
    }

    /// Begins to arm the trigger in new processes.
    fn begin_to_look(&self, looking: &mut Looking) {
        let (workers, uid) = (self.workers.clone(), self.authority.caller().uid);
        let watched = Arc::clone(&self.watched);
        let look = move || {
            if watched.waits_for_processes() {
                // `keep_looking` looks, and ends it.
                return watched.is_over();
            }
            watched.look();
            // All matches of a process that is over are in the queue.
            watched.trigger().is_over()
        };
        looking.spawn(async move { workers.run(WorkerKind::Step, uid, look).await });
    }

    /// Reports processes that have ended. True if no condition can be met any more and all matches
    /// were reported.
    async fn end_look(&mut self, is_over: Result<bool, JoinError>) -> Sent<bool> {
        let Ok(is_over) = is_over else {
            // The panic hook has logged the panic.
            return self.fail(error::bug()).await;
        };
        // Taken here, as for a firing, so that an end is reported before the firing that it causes.
        let reports = self
            .unjudged_at
            .is_none_or(|reported| reported.elapsed() >= self.report_every());
        let (endings, missed) = self
            .blocking(move |watched| {
                let missed = reports.then(|| (watched.unrecorded(), watched.take_missed()));
                (watched.take_endings(), missed)
            })
            .await?;
        self.tell_endings(endings).await?;
        if let Some((unrecorded, missed)) = missed {
            self.tell_missed(unrecorded, missed).await?;
        }
        if !is_over {
            return Ok(false);
        }
        loop {
            let calls = self.long_calls.next_now();
            if calls.is_empty() {
                break;
            }
            self.blocking(move |watched| watched.judge(calls)).await?;
        }
        while let Some(hit) = self.hits.next_now() {
            self.fire(hit).await?;
        }
        Ok(true)
    }

    async fn fire(&mut self, hit: Match) -> Sent {
        let matching = hit.place.key;
        let (firing, missed, endings) = self
            .blocking(move |watched| {
                let trigger = watched.trigger();
                let (firing, missed) = (trigger.describe(&hit), Missed::take(&trigger));
                drop(trigger);
                (firing, missed, watched.take_endings())
            })
            .await?;
        self.tell_endings(endings).await?;
        self.fired += 1;
        let number = self.fired;
        if let Some(period) = self.plan.period {
            self.given_back.extend(Instant::now().checked_add(period));
        }
        let (begun, at) = (firing.begun, firing.at);
        self.tell(Event::Fired(fired(number, firing, missed)))
            .await?;
        for switch in self.plan.switches.clone() {
            let reports = self
                .blocking(move |watched| watched.switch(&switch))
                .await?;
            self.tell(Event::Switched(v1::TriggerSwitched { number, reports }))
                .await?;
        }
        let refusal = match self.plan.snapshot {
            Some(snapshot) => self.snapshot(snapshot, matching, (begun, at)).await?,
            None => None,
        };
        let refusal = refusal.map(convert::refusal);
        self.tell(Event::Done(v1::TriggerDone { number, refusal }))
            .await
    }

    /// Sends a snapshot about the time from `begun` to `at`. `matching` is the number of the
    /// process that met the condition. Returns the refusal if there is none.
    async fn snapshot(
        &mut self,
        plan: SnapshotPlan,
        matching: usize,
        (begun, at): (Ticks, Ticks),
    ) -> Sent<Option<Refusal>> {
        let whom = self
            .blocking(move |watched| watched.whom(plan.whose, matching))
            .await?;
        let sessions = match whom {
            Ok(sessions) => sessions,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let (since, until, left) = self
            .blocking(move |watched| watched.frame(plan, begun, at))
            .await?;
        tokio::select! {
            () = self.sender.closed() => return Err(Gone),
            () = tokio::time::sleep(left) => {}
        }
        let turn = match self.workers.snapshot(self.authority.caller()).await {
            Ok(turn) => turn,
            Err(refusal) => return Ok(Some(refusal)),
        };
        let (chunks, mut pieces) = mpsc::channel(CHUNKS);
        // Taken at once, because a ring that keeps the newest events may not reach far back.
        let reach = Reach::Between(since, until);
        // The task ends when the receiver of its pieces is gone.
        spawn_blocking(move || {
            let _turn = turn;
            send_shot(sessions, reach, chunks);
        });
        while let Some(piece) = pieces.recv().await {
            match piece {
                Ok(chunk) => self.tell(Event::Snapshot(chunk)).await?,
                // Some processes are not in it. The trigger goes on.
                Err(status) if status.code() == Code::Aborted => {
                    let message = status.message().to_owned();
                    return Ok(Some(Refusal::new(Reason::Busy, message)));
                }
                Err(status) => return self.fail(status).await,
            }
        }
        Ok(None)
    }

    async fn tell_endings(&mut self, endings: Vec<(u32, Ending)>) -> Sent {
        for (pid, ending) in endings {
            self.tell(Event::Ended(ended(pid, ending))).await?;
        }
        Ok(())
    }

    /// Reports what was missed, and threads whose switches cannot be recorded, if
    /// there are more of them.
    async fn tell_missed(&mut self, unrecorded: Unrecorded, missed: Missed) -> Sent {
        let Unrecorded { threads, reason } = unrecorded;
        let Missed { skipped, unjudged } = missed;
        if unjudged == 0 && skipped == 0 && threads <= self.unrecorded {
            return Ok(());
        }
        self.unjudged_at = Some(Instant::now());
        self.unrecorded = threads;
        self.tell(Event::Missed(v1::TriggerMissed {
            unjudged,
            threads_without_runs: threads,
            without_runs_because: reason,
            skipped,
        }))
        .await
    }

    fn report_every(&self) -> Duration {
        match self.watched.waits_for_processes() {
            true => REPORT_FOR_POLICY,
            false => REPORT_EVERY,
        }
    }

    async fn over(&mut self, why: Why) -> Sent {
        let calls = self.long_calls.next_now();
        if !calls.is_empty() {
            self.blocking(move |watched| watched.judge(calls)).await?;
        }
        let Missed {
            mut skipped,
            mut unjudged,
        } = self
            .blocking(|watched| Missed::take(&watched.trigger()))
            .await?;
        // Matches and calls that were still waiting.
        while self.hits.next_now().is_some() {
            skipped = skipped.saturating_add(1);
        }
        let waiting = u64::try_from(self.long_calls.next_now().len()).unwrap_or(u64::MAX);
        unjudged = unjudged.saturating_add(waiting);
        let over = v1::TriggerOver {
            why: why.into(),
            fired: self.fired,
            skipped,
            unjudged,
        };
        self.tell(Event::Over(over)).await
    }

    async fn tell(&mut self, event: Event) -> Sent {
        let event = v1::TriggerEvent { event: Some(event) };
        // A client that does not read must not keep functions on for longer than requested.
        let waiting = match self.watched.waits_for_processes() {
            true => Some(Instant::now()),
            false => self.expires.map(|expires| expires.max(Instant::now())),
        };
        let late = waiting.and_then(|since| since.checked_add(READER_PATIENCE));
        tokio::select! {
            reported = self.sender.send(Ok(event)) => reported.map_err(|_| Gone),
            () = at(late) => Err(Gone),
        }
    }

    async fn fail<T>(&mut self, status: Status) -> Sent<T> {
        // The client may be gone.
        let _gone = self.sender.send(Err(status)).await;
        Err(Gone)
    }

    /// Runs `work` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &mut self,
        work: impl FnOnce(&Watched) -> T + Send + 'static,
    ) -> Sent<T> {
        let watched = Arc::clone(&self.watched);
        let work = move || work(&watched);
        match self
            .workers
            .run(WorkerKind::Step, self.authority.caller().uid, work)
            .await
        {
            Ok(done) => Ok(done),
            // The panic hook has logged the panic.
            Err(_) => self.fail(error::bug()).await,
        }
    }
}

/// Waits until a time. Without a time, for ever.
async fn at(when: Option<Instant>) {
    match when {
        Some(when) => sleep_until(At::from_std(when)).await,
        None => std::future::pending().await,
    }
}

/// Reads the records of switches again and again. Returns only after a panic.
async fn read_runs((watched, workers): (Arc<Watched>, Workers), uid: u32) {
    loop {
        let of = Arc::clone(&watched);
        let read = move || of.read_runs();
        let Ok(Some(pause)) = workers.run(WorkerKind::Step, uid, read).await else {
            return;
        };
        sleep(pause).await;
    }
}

/// The shortest pause between two looks.
fn look_every(watched: &Watched) -> Duration {
    match watched.waits_for_processes() {
        true => LOOK_FOR_POLICY,
        false => LOOK_EVERY,
    }
}

/// Arms the trigger of a policy in new processes, and disarms it in those that the policy has let
/// go, whatever the client does meanwhile. Returns only after a panic.
async fn keep_looking((watched, workers): (Arc<Watched>, Workers), uid: u32) {
    loop {
        let (began, of) = (Instant::now(), Arc::clone(&watched));
        let look = move || match of.is_wanted() {
            true => of.look(),
            // `serve` notices, and ends the call.
            false => of.end(),
        };
        if workers.run(WorkerKind::Step, uid, look).await.is_err() {
            return;
        }
        let pause = began.elapsed().saturating_mul(LOOK_SHARE);
        sleep(pause.clamp(look_every(&watched), LONGEST_LOOK_PAUSE)).await;
    }
}

/// Records the switches of new threads, again and again. Returns only after a panic.
async fn record_new_threads((watched, workers): (Arc<Watched>, Workers), uid: u32) {
    loop {
        let (began, of) = (Instant::now(), Arc::clone(&watched));
        let record = move || of.record_all_runs();
        if workers.run(WorkerKind::Step, uid, record).await.is_err() {
            return;
        }
        let pause = began.elapsed().saturating_mul(LOOK_SHARE);
        sleep(pause.clamp(LOOK_EVERY, LONGEST_LOOK_PAUSE)).await;
    }
}

/// The first message.
pub(super) fn armed(watched: &Watched) -> v1::TriggerEvent {
    let count = |count: usize| u32::try_from(count).unwrap_or(u32::MAX);
    let Unrecorded {
        threads: threads_without_runs,
        reason: without_runs_because,
    } = watched.unrecorded();
    let trigger = watched.trigger();
    let armed = v1::TriggerArmed {
        processes: count(trigger.sessions().count()),
        functions: count(trigger.functions()),
        threads_without_runs,
        without_runs_because,
    };
    v1::TriggerEvent {
        event: Some(Event::Armed(armed)),
    }
}

fn fired(number: u32, firing: Firing, missed: Missed) -> v1::TriggerFired {
    use v1::trigger_fired::Value as Wire;
    let Firing {
        condition,
        pid,
        thread,
        function,
        begun: _,
        at: _,
        monotonic_ns,
        wall_ns,
        noticed_after_ns,
        value,
    } = firing;
    let (tid, thread) = thread.unwrap_or_default();
    v1::TriggerFired {
        number,
        condition: condition.and_then(|index| u32::try_from(index).ok()),
        pid: pid.map_or(0, crate::Pid::as_u32),
        tid,
        thread,
        function: function.unwrap_or_default(),
        monotonic_ns,
        wall_ns,
        noticed_after_ns,
        value: match value {
            Value::None => None,
            Value::Duration(ns) => Some(Wire::DurationNs(ns)),
            Value::OnCpu(ns) => Some(Wire::OnCpuNs(ns)),
            Value::OffCpu(ns) => Some(Wire::OffCpuNs(ns)),
            Value::Calls(calls) => Some(Wire::Calls(calls)),
            Value::Type(number) => Some(Wire::Type(number.into())),
        },
        skipped: missed.skipped,
        unjudged: missed.unjudged,
    }
}

fn ended(pid: u32, ending: Ending) -> v1::TriggerEnded {
    use v1::trigger_ended::Cause;
    let cause = match ending {
        Ending::Signal(signal) => Cause::Signal(signal),
        Ending::Code(code) => Cause::Code(code),
        Ending::Unknown => Cause::Unknown(true),
    };
    v1::TriggerEnded {
        pid,
        cause: Some(cause),
    }
}
