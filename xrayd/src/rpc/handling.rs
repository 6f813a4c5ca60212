//! What all RPCs share: a call is admitted, does its work on a thread that may block, and leaves an
//! audit record on each way out.

use std::{sync::Arc, time::Duration};

use tokio::sync::Notify;
use tonic::{Request, Response, Status};
use xray_trace::instr_map::Selection;
use xrayd_proto::v1;

use super::{
    admission::{Admission, Admitted, PolicyTriggerKey},
    authorise::{self, Authority, OperationKind, Targets},
    convert, described, error, live,
    run_records::PERF_EVENTS_OF_USER,
    undo::Undo,
    workers::{WorkerKind, Workers},
};
use crate::{
    Pid,
    access::{AccessRules, Verb},
    audit::{AuditLog, Call, Operation},
    policies::Policies,
    process::{Outcomes, ProcessOrGroup, Registry, Toggle},
    refusal::Refusal,
    sys::since_boot_ns,
    types::{Run, Switch},
};

/// Limit on blocking calls of one user.
const CALLS_PER_USER: u32 = 16;
/// Limit on open streams of one user.
const STREAMS_PER_USER: u32 = 32;
/// Limit on open streams of a user that may read what policies record: several of each process.
const RECORDING_STREAMS: u32 = 4096;
/// Limit on the calls of one user for one trigger of a policy. The second is for a client that
/// comes again before the daemon has noticed that it went.
const CALLS_PER_POLICY_TRIGGER: u32 = 2;
/// Time for a client that has its answer to undo its changes by itself.
const ANSWERED_PATIENCE: Duration = Duration::from_secs(10);

/// The answer to a call.
pub(super) type Answer<T> = Result<Response<T>, Status>;

/// The service. Clones share everything.
#[derive(Debug, Clone)]
pub(super) struct Service {
    pub(super) registry: Registry,
    pub(super) audit: AuditLog,
    pub(super) workers: Workers,
    /// When the service began, in nanoseconds since the boot.
    pub(super) started_ns: u64,
    /// Notified when the daemon is to be executed anew. `None` if no later daemon would go on with
    /// its sessions.
    pub(super) restart: Option<Arc<Notify>>,
    /// The policies of a daemon. `None` where no daemon runs.
    pub(super) policies: Option<Policies>,
    /// The rules of access.
    pub(super) access: AccessRules,
    calls: Arc<Admission>,
    /// Calls that restore processes. Other calls never keep them out.
    releases: Arc<Admission>,
    streams: Arc<Admission>,
    /// Streams of users that may read what policies record.
    recordings: Arc<Admission>,
    /// Calls for a trigger of a policy, by user, policy and number.
    pub(super) policy_triggers: Arc<Admission<PolicyTriggerKey>>,
    /// Perf events of threads.
    pub(super) run_times: Arc<Admission>,
}

// === impl Service ===

impl Service {
    pub(super) fn new(
        registry: Registry,
        (audit, access): (AuditLog, AccessRules),
        workers: Workers,
        restart: Option<Arc<Notify>>,
        policies: Option<Policies>,
    ) -> Self {
        Self {
            policies,
            access,
            registry,
            audit,
            workers,
            started_ns: since_boot_ns(),
            restart,
            calls: Admission::new(CALLS_PER_USER),
            releases: Admission::new(CALLS_PER_USER),
            streams: Admission::new(STREAMS_PER_USER),
            recordings: Admission::new(RECORDING_STREAMS),
            policy_triggers: Admission::new(CALLS_PER_POLICY_TRIGGER),
            run_times: Admission::new(PERF_EVENTS_OF_USER),
        }
    }

    /// Begins a call, with what its caller may do. From here on, each way out leaves an audit
    /// record.
    pub(super) fn call<T>(
        &self,
        request: &Request<T>,
        operation: Operation,
    ) -> Result<(Call, Authority), Status> {
        let authority = authorise::authority(request, &self.access)?;
        let call = self.audit.call(authority.caller(), operation);
        Ok((call.with_rule(authority.used()), authority))
    }

    /// Runs a live stream to its end. If the reader is gone before, undoes what it wanted undone.
    pub(super) fn follow(
        &self,
        stream: impl Future<Output = live::Ending> + Send + 'static,
        undo: Option<Undo>,
        (authority, pid, traced): (Authority, Pid, ProcessOrGroup),
    ) {
        let registry = self.registry.clone();
        let workers = self.workers.clone();
        let audit = self.audit.clone();
        tokio::spawn(async move {
            match stream.await {
                live::Ending::Over => return,
                live::Ending::Early => {}
                live::Ending::Answered => tokio::time::sleep(ANSWERED_PATIENCE).await,
            }
            if let Some(what) = undo {
                // This does not count against the user's limit on calls, because it has to be done.
                let uid = authority.caller().uid;
                let undo = move || what.undo(&registry, &audit, &authority, pid, &traced);
                // The panic hook has logged a panic.
                let _ = workers.run(WorkerKind::Release, uid, undo).await;
            }
        });
    }

    /// Runs `work` on a thread that may block, and records the decision.
    pub(super) async fn blocking<T: Send + 'static>(
        &self,
        call: Call,
        work: impl FnOnce(&Registry, &mut Call) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        self.work_in(WorkerKind::Call, call, work).await
    }

    /// As [`Service::blocking`], in this lane.
    pub(super) async fn work_in<T: Send + 'static>(
        &self,
        lane: WorkerKind,
        mut call: Call,
        work: impl FnOnce(&Registry, &mut Call) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        let uid = call.caller().uid;
        let admission = match lane {
            WorkerKind::Call | WorkerKind::Step => &self.calls,
            WorkerKind::Release => &self.releases,
        };
        let admitted = place(admission, "calls", &mut call)?;
        let registry = self.registry.clone();
        let done = self.workers.run(lane, uid, move || {
            let _admitted = admitted;
            let result = work(&registry, &mut call);
            call.decide(&result);
            result
        });
        // The panic hook has logged a panic.
        Ok(done.await.map_err(|_| error::bug())??)
    }

    pub(super) fn stream(
        &self,
        call: &mut Call,
        authority: &Authority,
    ) -> Result<Admitted, Status> {
        let admission = match authority.reads_recordings() {
            true => &self.recordings,
            false => &self.streams,
        };
        place(admission, "streams", call)
    }

    /// Switches functions of one process, or of all that the caller may trace.
    pub(super) async fn toggle(
        &self,
        request: Request<v1::ToggleRequest>,
        switch: Switch,
    ) -> Answer<v1::ToggleResponse> {
        let operation = match (switch, request.get_ref().dry_run) {
            (_, true) => Operation::DryRun,
            (Switch::On, false) => Operation::Enable,
            (Switch::Off, false) => Operation::Disable,
        };
        let (call, authority) = self.call(&request, operation)?;
        let caller = call.caller();
        let v1::ToggleRequest {
            pid,
            selection,
            dry_run,
            capture,
            lease,
        } = request.into_inner();
        let call = call.of(pid).with(described::selection(selection.as_ref()));
        let run = if dry_run { Run::Dry } else { Run::Real };
        let lane = match (switch, lease) {
            (Switch::Off, 1..) => WorkerKind::Release,
            _ => WorkerKind::Call,
        };
        let reports = self
            .work_in(lane, call, move |registry, call| {
                let whom = Targets::try_from(pid)?;
                let to = convert::wanted(switch, capture)?;
                let compile = |selection: &Selection| registry.compile(caller.payer(), selection);
                let toggle = convert::toggle(selection, to, lease, run, compile)?;
                let kind = match (&toggle, run) {
                    (Toggle::Release(_), _) => OperationKind::Release,
                    (Toggle::Functions(..), Run::Dry) => OperationKind::Read(Verb::List),
                    (Toggle::Functions(..), Run::Real) => OperationKind::Change(Verb::Count),
                };
                let captures = toggle.captures();
                for_each(registry, call, (&authority, whom), kind, |traced| {
                    if let OperationKind::Change(_) = kind
                        && let Err(refused) = authority.check_mode(traced, None, captures)
                    {
                        return traced.refused(&refused);
                    }
                    traced.toggle(registry, &toggle, authority.may_release())
                })
            })
            .await?;
        let reports = reports
            .into_iter()
            .map(|(pid, report)| match report {
                Ok(report) => convert::toggle_report(pid, report),
                Err(refusal) => convert::toggle_refused(pid, refusal),
            })
            .collect();
        Ok(Response::new(v1::ToggleResponse { reports }))
    }
}

/// Takes a place for this call. Without a free place the call is refused.
fn place(admission: &Arc<Admission>, what: &str, call: &mut Call) -> Result<Admitted, Status> {
    let uid = call.caller().uid;
    let admitted = admission.admit(uid);
    let admitted = admitted.ok_or_else(|| error::too_many(what, uid));
    if admitted.is_err() {
        call.decide(&admitted);
    }
    Ok(admitted?)
}

/// Calls `work` for each target, and returns the outcomes. If the request names one process, and
/// its refusal is the only outcome, the refusal is that of the call.
pub(super) fn for_each<T>(
    registry: &Registry,
    call: &mut Call,
    (authority, whom): (&Authority, Targets),
    kind: OperationKind,
    work: impl Fn(&ProcessOrGroup) -> Outcomes<T> + Sync,
) -> Result<Outcomes<T>, Refusal>
where
    T: Send,
{
    let traced = authority.all_traced(registry, whom, kind)?;
    let reports = authorise::for_each(call.caller(), &traced, work);
    let mut reports: Outcomes<T> = reports.into_iter().flatten().collect();
    call.decide_each(&reports);
    if let (Targets::One(_), [(_, Err(_))]) = (whom, &*reports)
        && let Some((_, Err(refusal))) = reports.pop()
    {
        return Err(refusal);
    }
    Ok(reports)
}
