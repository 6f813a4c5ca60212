//! The RPCs: authorise, convert inward, call the registry on a blocking thread, convert the answer.
//! The rules of each step are in its own file.

use std::{
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use tokio::{sync::mpsc, task::spawn_blocking};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use xray_trace::instr_map::Selection;
use xrayd_proto::v1::{self, xrayd_server::Xrayd};

use super::{
    authorise::{self, Authority, OperationKind, Targets, verb_of},
    convert, counts, described, error,
    fetch::{CHUNKS, Pace, send_all, send_shot},
    handling::{Answer, Service, for_each},
    kernel_tracepoints,
    live::{self, EventMessages, Items},
    policies,
    profile::{self, Profiles},
    recorded::Recorded,
    redactor::Redacted,
    rotation::Rotation,
    run_records::{Delivery, RunRecords},
    trace_messages::TraceMessages,
    trigger::{self, Plan, Triggering, Watched},
    undo::{Unanswered, Undo},
    workers::WorkerKind,
};
use crate::{
    Pid,
    access::Verb,
    audit::Operation,
    config_file,
    process::{AttachOptions, Attached, ProcessOrGroup, Registry, event_formats},
    refusal::{Reason, Refusal},
    sys::now_anchor,
    types::{FunctionRow, Mode, Reach, Switch},
};

/// Messages of a live stream that wait for the connection.
const QUEUED_MESSAGES: usize = 4;

/// Longest wait for forked processes at a detach. One whose files do not answer holds up no other.
const CHILDREN_TIME: Duration = Duration::from_secs(5);

/// Functions in one message of ListFunctions.
const FUNCTIONS_PER_BATCH: usize = 1024;

fn no_state() -> Refusal {
    let message = "the daemon keeps no state, so no later daemon would go on with its sessions";
    Refusal::new(Reason::NoState, message)
}

#[tonic::async_trait]
impl Xrayd for Service {
    type ListFunctionsStream = ReceiverStream<Result<v1::FunctionBatch, Status>>;
    type StreamEventsStream = ReceiverStream<Result<v1::EventBatch, Status>>;
    type StreamTraceStream = ReceiverStream<Result<v1::TraceChunk, Status>>;
    type FetchCountsStream = ReceiverStream<Result<v1::CallCounts, Status>>;
    type FetchProfileStream = ReceiverStream<Result<v1::TraceChunk, Status>>;
    type TriggerStream = ReceiverStream<Result<v1::TriggerEvent, Status>>;
    type FetchTraceStream = ReceiverStream<Result<v1::TraceChunk, Status>>;

    async fn get_info(&self, request: Request<v1::GetInfoRequest>) -> Answer<v1::GetInfoResponse> {
        authorise::authority(&request, &self.access)?;
        let v1::GetInfoRequest {} = request.into_inner();
        Ok(Response::new(v1::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            retain_bytes: self.registry.config().retain_bytes,
            daemon_pid: std::process::id(),
            started_ns: self.started_ns,
        }))
    }

    async fn restart(&self, request: Request<v1::RestartRequest>) -> Answer<v1::RestartResponse> {
        let (mut call, authority) = self.call(&request, Operation::Restart)?;
        let v1::RestartRequest {} = request.into_inner();
        let may = authority.administration();
        let mut restart = may.and_then(|()| self.restart.as_ref().ok_or_else(no_state));
        if restart.is_ok()
            && let Err(why) = config_file::check_again().await
        {
            let message = format!("the daemon would not start again: {why}");
            restart = Err(Refusal::new(Reason::Limit, message));
        }
        call.decide(&restart);
        // The server sends the answer before it stops.
        restart?.notify_one();
        Ok(Response::new(v1::RestartResponse {}))
    }

    async fn list_policies(
        &self,
        request: Request<v1::ListPoliciesRequest>,
    ) -> Answer<v1::ListPoliciesResponse> {
        self.list_of_policies(request).await.map(Response::new)
    }

    async fn apply_policy(
        &self,
        request: Request<v1::ApplyPolicyRequest>,
    ) -> Answer<v1::ApplyPolicyResponse> {
        self.apply_policy_of(request).await.map(Response::new)
    }

    async fn remove_policy(
        &self,
        request: Request<v1::RemovePolicyRequest>,
    ) -> Answer<v1::RemovePolicyResponse> {
        self.remove_policy_of(request).await.map(Response::new)
    }

    async fn reload_policies(
        &self,
        request: Request<v1::ReloadPoliciesRequest>,
    ) -> Answer<v1::ReloadPoliciesResponse> {
        self.reload(request).await.map(Response::new)
    }

    async fn get_access(
        &self,
        request: Request<v1::GetAccessRequest>,
    ) -> Answer<v1::GetAccessResponse> {
        self.access_rules(request).await.map(Response::new)
    }

    async fn check_access(
        &self,
        request: Request<v1::CheckAccessRequest>,
    ) -> Answer<v1::CheckAccessResponse> {
        self.checked_access(request).await.map(Response::new)
    }

    async fn list_processes(
        &self,
        request: Request<v1::ListProcessesRequest>,
    ) -> Answer<v1::ListProcessesResponse> {
        let (call, authority) = self.call(&request, Operation::ListProcesses)?;
        let v1::ListProcessesRequest {} = request.into_inner();
        let processes = self
            .blocking(call, move |registry, _| {
                let processes = registry.list_those(move |target| authority.may_list(target))?;
                Ok(processes.into_iter().map(convert::process).collect())
            })
            .await?;
        Ok(Response::new(v1::ListProcessesResponse { processes }))
    }

    async fn preflight(
        &self,
        request: Request<v1::PreflightRequest>,
    ) -> Answer<v1::PreflightResponse> {
        let (call, authority) = self.call(&request, Operation::Preflight)?;
        let v1::PreflightRequest { pid } = request.into_inner();
        let answer = self
            .blocking(call.of(pid), move |registry, _| {
                let pid = authorise::one(pid)?;
                let checks = authority.looking(registry, pid, || registry.preflight(pid))?;
                Ok(convert::preflight(pid, checks))
            })
            .await?;
        Ok(Response::new(answer))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let (call, authority) = self.call(&request, Operation::Attach)?;
        let request = request.into_inner();
        let (audit, workers) = (self.audit.clone(), self.workers.clone());
        let (answer, unanswered) = self
            .blocking(call.of(request.pid), move |registry, _| {
                let pid = authorise::one(request.pid)?;
                let options = convert::attach_options(request)?;
                let kind = OperationKind::Change(verb_of(options.mode));
                let options = authority.attaching(pid, options)?;
                let Attached { session, report } = registry.attach(pid, options)?;
                let already = report.already;
                if let Err(refused) = authority.check_session(&session, kind) {
                    // The process has changed while it was attached to.
                    if !already {
                        let _ = registry.end(&session);
                    }
                    return Err(refused);
                }
                let unanswered =
                    Unanswered::new(registry, audit, workers, (authority, pid), already);
                let answer = v1::AttachResponse {
                    status: Some(convert::status(session.status())),
                    report: Some(convert::attach_report(report)),
                };
                Ok((answer, unanswered))
            })
            .await?;
        unanswered.answered();
        Ok(Response::new(answer))
    }

    async fn detach(&self, request: Request<v1::DetachRequest>) -> Answer<v1::DetachResponse> {
        let (call, authority) = self.call(&request, Operation::Detach)?;
        let v1::DetachRequest {
            pid,
            leave_children,
        } = request.into_inner();
        let (reports, children) = self
            .work_in(WorkerKind::Release, call.of(pid), move |registry, call| {
                let whom = Targets::try_from(pid)?;
                let kind = OperationKind::Release;
                let reports = for_each(registry, call, (&authority, whom), kind, |traced| {
                    traced.end(registry)
                })?;
                let detached: Vec<Pid> = reports.iter().map(|(pid, _)| *pid).collect();
                let children = match leave_children {
                    true => Vec::new(),
                    false => {
                        let deadline = Instant::now() + CHILDREN_TIME;
                        // Processes that the caller may not trace are left out.
                        registry.end_children(&detached, deadline, move |pid| {
                            let options = AttachOptions {
                                mode: Mode::Count,
                                ..AttachOptions::default()
                            };
                            authority.attaching(pid, options).ok()
                        })
                    }
                };
                Ok((reports, children))
            })
            .await?;
        let report = |(pid, report)| match report {
            Ok(report) => convert::detach_report(pid, report),
            Err(refusal) => convert::detach_refused(pid, refusal),
        };
        let inherited = |outcome| v1::DetachReport {
            inherited: true,
            ..report(outcome)
        };
        let reports = reports.into_iter().map(report);
        let reports = reports.chain(children.into_iter().map(inherited));
        Ok(Response::new(v1::DetachResponse {
            reports: reports.collect(),
        }))
    }

    async fn list_functions(
        &self,
        request: Request<v1::ListFunctionsRequest>,
    ) -> Answer<Self::ListFunctionsStream> {
        let (call, authority) = self.call(&request, Operation::ListFunctions)?;
        let v1::ListFunctionsRequest { pid, selection } = request.into_inner();
        let mut call = call.of(pid).with(described::selection(selection.as_ref()));
        let admitted = self.stream(&mut call, &authority)?;
        let functions = self
            .blocking(call, move |registry, _| {
                let whom = Targets::try_from(pid)?;
                let selection = selection.map(convert::selection).transpose()?;
                functions(registry, &authority, whom, selection.as_ref())
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        tokio::spawn(async move {
            let _admitted = admitted;
            let mut functions = functions.into_iter();
            let batches = std::iter::from_fn(|| {
                let batch = functions.by_ref().take(FUNCTIONS_PER_BATCH);
                let batch: Vec<_> = batch
                    .map(|(pid, row)| convert::function(pid, row))
                    .collect();
                (!batch.is_empty()).then_some(v1::FunctionBatch { functions: batch })
            });
            send_all(sender, Pace::new(), batches).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn enable(&self, request: Request<v1::ToggleRequest>) -> Answer<v1::ToggleResponse> {
        self.toggle(request, Switch::On).await
    }

    async fn disable(&self, request: Request<v1::ToggleRequest>) -> Answer<v1::ToggleResponse> {
        self.toggle(request, Switch::Off).await
    }

    async fn update_settings(
        &self,
        request: Request<v1::UpdateSettingsRequest>,
    ) -> Answer<v1::UpdateSettingsResponse> {
        let (call, authority) = self.call(&request, Operation::UpdateSettings)?;
        let v1::UpdateSettingsRequest { pid, settings } = request.into_inner();
        let what = settings.as_ref().map(described::settings);
        let call = call.of(pid).with(what.unwrap_or_default());
        let reports = self
            .blocking(call, move |registry, call| {
                let update = convert::settings_update(settings.unwrap_or_default())?;
                let whom = Targets::try_from(pid)?;
                let kind = match update.is_empty() {
                    true => OperationKind::Read(Verb::List),
                    false => OperationKind::Change(Verb::Count),
                };
                for_each(registry, call, (&authority, whom), kind, |traced| {
                    if let OperationKind::Change(_) = kind
                        && let Err(refused) = authority.check_mode(traced, update.mode, false)
                    {
                        return traced.refused(&refused);
                    }
                    traced.update(&update)
                })
            })
            .await?;
        let reports = reports.into_iter();
        let reports = reports.map(|(pid, before)| convert::settings_report(pid, before));
        Ok(Response::new(v1::UpdateSettingsResponse {
            reports: reports.collect(),
        }))
    }

    async fn get_status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let (call, authority) = self.call(&request, Operation::Status)?;
        let v1::StatusRequest { pid } = request.into_inner();
        let status = self
            .blocking(call.of(pid), move |registry, _| {
                let whom = Targets::try_from(pid)?;
                let traced =
                    authority.all_traced(registry, whom, OperationKind::Read(Verb::List))?;
                let sessions = || traced.iter().flat_map(ProcessOrGroup::sessions);
                if sessions().filter(|session| session.refresh()).count() > 0 {
                    thread::sleep(REFRESH_TIME);
                }
                Ok(v1::StatusResponse {
                    processes: traced.iter().flat_map(statuses).collect(),
                    event_formats: event_formats(sessions()),
                })
            })
            .await?;
        Ok(Response::new(status))
    }

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Answer<Self::StreamEventsStream> {
        let (call, authority) = self.call(&request, Operation::StreamEvents)?;
        let v1::StreamEventsRequest {
            pid,
            selection,
            undo,
        } = request.into_inner();
        let mut call = call.of(pid).with(described::selection(selection.as_ref()));
        let admitted = self.stream(&mut call, &authority)?;
        let by = authority.clone();
        let (what, pid, traced, subscription, encoder) = self
            .blocking(call, move |registry, _| {
                let pid = authorise::one(pid)?;
                let what = undo.map(Undo::try_from).transpose()?;
                let selection = selection.map(convert::selection).transpose()?;
                let traced = by.traced(registry, pid, OperationKind::Read(Verb::Trace))?;
                let redaction = by.redaction_of(&traced)?;
                let subscription = Items::Live(traced.subscribe(None, 0));
                let first = traced.sessions().into_iter().next();
                let mut anchors = first.map(|first| first.anchors()).unwrap_or_default();
                // A new session has one anchor, and the frequency of the counter needs two.
                anchors.push(now_anchor().map_err(|error| {
                    Refusal::new(Reason::Io, format!("cannot read the clock: {error}"))
                })?);
                let encoder = Redacted::new(EventMessages::new(selection, anchors), redaction);
                Ok((what, pid, traced, subscription, encoder))
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        let workers = (self.workers.clone(), authority.caller().uid);
        let stream = live::run(subscription, encoder, sender, workers, admitted);
        self.follow(stream, what, (authority, pid, traced));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn stream_trace(
        &self,
        request: Request<v1::StreamTraceRequest>,
    ) -> Answer<Self::StreamTraceStream> {
        let (call, authority) = self.call(&request, Operation::StreamTrace)?;
        let v1::StreamTraceRequest {
            pid,
            undo,
            selection,
            duration_ns,
            run_times,
            wait_ns,
            kernel_tracepoints,
            prompt_run_times,
            file_bytes,
            file_ns,
            resumable,
            after,
            since_ns,
        } = request.into_inner();
        let duration = (duration_ns > 0).then(|| Duration::from_nanos(duration_ns));
        let admission = Arc::clone(&self.run_times);
        let described = described::stream(selection.as_ref(), &kernel_tracepoints);
        let mut call = call.of(pid).with(described);
        let admitted = self.stream(&mut call, &authority)?;
        let by = authority.clone();
        let (what, pid, traced, subscription, encoder) = self
            .blocking(call, move |registry, _| {
                let pid = authorise::one(pid)?;
                let what = undo.map(Undo::try_from).transpose()?;
                let selection = selection.map(convert::selection).transpose()?;
                let wait = convert::wait_ticks(wait_ns)?;
                let rotation = Rotation::of(file_bytes, file_ns)?;
                if rotation.is_some() && (run_times || matches!(what, Some(Undo::Lease(_)))) {
                    let message = "a trace in several files has no run times and no lease";
                    return Err(Refusal::new(Reason::Limit, message));
                }
                let begin = convert::stream_begin(&after, since_ns)?;
                let is_plain = !run_times && wait == 0 && !matches!(what, Some(Undo::Lease(_)));
                if resumable && !is_plain {
                    let message = "a resumable trace has no run times, no waits and no lease";
                    return Err(Refusal::new(Reason::Limit, message));
                }
                let tracepoints = kernel_tracepoints::find(&kernel_tracepoints, run_times, &by)?;
                let delivery = match prompt_run_times {
                    true => Delivery::Prompt,
                    false => Delivery::WhenMany,
                };
                let owner = (admission, by.caller().uid);
                let mut runs = run_times.then(|| RunRecords::new(owner, tracepoints, delivery));
                let kind = match wait {
                    0 => OperationKind::Read(Verb::Trace),
                    // The process waits for the reader.
                    1.. => OperationKind::Change(Verb::Trace),
                };
                let traced = by.traced(registry, pid, kind)?;
                let redaction = by.redaction_of(&traced)?;
                if !kernel_tracepoints.is_empty() {
                    // They show arguments of system calls.
                    by.check(&traced, OperationKind::Change(Verb::Arguments))?;
                }
                let lease = match what {
                    Some(Undo::Lease(lease)) => Some(lease),
                    Some(Undo::Attach) | None => None,
                };
                // Before the answer: the client switches functions on then. Before the
                // subscription, whose queue fills meanwhile.
                if let Some(runs) = &mut runs {
                    for session in traced.sessions() {
                        runs.begin_process(&*session);
                    }
                }
                let resumed = match resumable {
                    true => Some(traced.resume(begin).ok_or_else(|| {
                        let message = "only processes that are followed from it are attached";
                        Refusal::new(Reason::NotAttached, format!("process {pid}: {message}"))
                    })?),
                    false => None,
                };
                let recorded = lease.map(|_| Recorded::of(selection, duration));
                let encoder = TraceMessages::new(recorded, runs, rotation, resumed.as_ref());
                let encoder = encoder.map_err(|error| {
                    Refusal::new(Reason::Io, format!("cannot begin the trace: {error}"))
                })?;
                let subscription = match resumed {
                    Some(resumed) => Items::Resumed(Box::new(resumed)),
                    None => Items::Live(traced.subscribe(lease, wait)),
                };
                let encoder = Redacted::new(encoder, redaction);
                Ok((what, pid, traced, subscription, encoder))
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        let workers = (self.workers.clone(), authority.caller().uid);
        let stream = live::run(subscription, encoder, sender, workers, admitted);
        self.follow(stream, what, (authority, pid, traced));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_trace(
        &self,
        request: Request<v1::FetchTraceRequest>,
    ) -> Answer<Self::FetchTraceStream> {
        let (call, authority) = self.call(&request, Operation::Snapshot)?;
        let v1::FetchTraceRequest { pid, last_ns } = request.into_inner();
        let reach = match last_ns {
            0 => Reach::All,
            last_ns => Reach::Last(Duration::from_nanos(last_ns)),
        };
        let mut call = call.of(pid);
        let admitted = self.stream(&mut call, &authority)?;
        let turn = self.workers.snapshot(authority.caller()).await;
        if turn.is_err() {
            call.decide(&turn);
        }
        let turn = turn?;
        let by = authority.clone();
        let sessions = self
            .blocking(call, move |registry, _| {
                let whom = Targets::try_from(pid)?;
                by.readable(registry, whom)
            })
            .await?;
        let (sender, receiver) = mpsc::channel(CHUNKS);
        spawn_blocking(move || {
            let _held = (admitted, turn);
            send_shot(sessions, reach, sender);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_counts(
        &self,
        request: Request<v1::FetchCountsRequest>,
    ) -> Answer<Self::FetchCountsStream> {
        let (call, authority) = self.call(&request, Operation::Counts)?;
        let v1::FetchCountsRequest { pid } = request.into_inner();
        let mut call = call.of(pid);
        let admitted = self.stream(&mut call, &authority)?;
        let counted = self
            .blocking(call, move |registry, _| {
                let pid = authorise::one(pid)?;
                let traced = authority.traced(registry, pid, OperationKind::Read(Verb::Count))?;
                counts::get(&traced, pid)
            })
            .await?;
        let (sender, receiver) = mpsc::channel(CHUNKS);
        tokio::spawn(async move {
            let _admitted = admitted;
            let messages = counted
                .iter()
                .flat_map(|(session, counts)| counts::messages(session, counts));
            send_all(sender, Pace::new(), messages).await;
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_profile(
        &self,
        request: Request<Streaming<v1::FetchProfileRequest>>,
    ) -> Answer<Self::FetchProfileStream> {
        let (mut call, authority) = self.call(&request, Operation::Profile)?;
        // Taken before the wait for the first message, which may never come.
        let admitted = self.stream(&mut call, &authority)?;
        let mut requests = request.into_inner();
        let first = requests.message().await?;
        let v1::FetchProfileRequest {
            pid,
            from_now,
            undo,
        } = first.ok_or_else(|| Status::invalid_argument("the client sent no request"))?;
        let by = authority.clone();
        let (what, pid, traced, profiles) = self
            .blocking(call.of(pid), move |registry, _| {
                let pid = authorise::one(pid)?;
                let what = undo.map(Undo::try_from).transpose()?;
                let traced = by.traced(registry, pid, OperationKind::Read(Verb::Profile))?;
                let profiles = Profiles::begin(&traced, pid, from_now)?;
                Ok((what, pid, traced, profiles))
            })
            .await?;
        let (sender, receiver) = mpsc::channel(CHUNKS);
        let workers = (self.workers.clone(), authority.caller());
        let stream = profile::run(profiles, requests, sender, workers, admitted);
        self.follow(stream, what, (authority, pid, traced));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn trigger(
        &self,
        request: Request<Streaming<v1::TriggerRequest>>,
    ) -> Answer<Self::TriggerStream> {
        let (mut call, authority) = self.call(&request, Operation::Trigger)?;
        // Taken before the wait for the first message, which may never come.
        let admitted = self.stream(&mut call, &authority)?;
        let mut requests = request.into_inner();
        let first = requests.message().await?;
        let first = first.ok_or_else(|| Status::invalid_argument("the client sent no request"))?;
        let pid = match first.of_policy {
            Some(_) => 0,
            None => first.pid,
        };
        let call = call.of(pid).with(described::trigger(&first));
        let policies = self.policies.clone();
        let (audit, run_times) = (self.audit.clone(), Arc::clone(&self.run_times));
        let armed_triggers = Arc::clone(&self.policy_triggers);
        let (plan, begun, armed, authority, place) = self
            .blocking(call, move |registry, _| {
                // Compiling the patterns takes a while.
                let of_policy = policies.zip(first.of_policy.clone());
                let (plan, by, place) = match &first.of_policy {
                    Some(trigger) => {
                        let policies = of_policy.as_ref().map(|(policies, _)| policies);
                        let (plan, by) = policies::trigger(policies, trigger, authority)?;
                        let uid = by.caller().uid;
                        let place =
                            armed_triggers.admit((uid, trigger.policy.clone(), trigger.index));
                        let what = "calls for one trigger of a policy";
                        let place = place.ok_or_else(|| error::too_many(what, uid))?;
                        (plan, by, Some(place))
                    }
                    None => (Plan::try_from(first)?, authority, None),
                };
                let begun =
                    Watched::begin(registry, &audit, by.clone(), &plan, run_times, of_policy)?;
                let armed = trigger::armed(&begun.0);
                Ok((plan, begun, armed, by, place))
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        // The queue is empty, so there is room.
        let _ = sender.try_send(Ok(armed));
        let workers = (self.workers.clone(), authority);
        let triggering = Triggering::new(plan, begun, sender, workers);
        tokio::spawn(triggering.run(requests, (admitted, place)));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// The time that drains have to look at their rings before their counters are read. A drain that
/// takes longer shows older counters.
const REFRESH_TIME: Duration = Duration::from_millis(20);

/// A row for each process.
fn statuses(traced: &ProcessOrGroup) -> Vec<v1::ProcessStatus> {
    let sessions = traced.sessions();
    let rows = sessions
        .iter()
        .map(|session| convert::status(session.status()))
        .collect();
    match traced {
        ProcessOrGroup::Group(group) => convert::group(group.status(), rows),
        ProcessOrGroup::Session(_) => rows,
    }
}

/// Functions with their processes, ordered by pid and id.
fn functions(
    registry: &Registry,
    authority: &Authority,
    whom: Targets,
    selection: Option<&Selection>,
) -> Result<Vec<(Pid, FunctionRow)>, Refusal> {
    let with_pid = |pid, rows: Vec<FunctionRow>| rows.into_iter().map(move |row| (pid, row));
    if let Targets::One(pid) = whom
        && registry.get(pid).is_none()
    {
        let rows = authority.looking(registry, pid, || registry.inspect(pid))?;
        let rows = match selection {
            Some(selection) => convert::matching(rows, selection)?,
            None => rows,
        };
        return Ok(with_pid(pid, rows).collect());
    }
    let mut functions = Vec::new();
    let kind = OperationKind::Read(Verb::List);
    for session in authority.sessions(registry, whom, kind)? {
        functions.extend(with_pid(session.pid(), session.functions(selection)?));
    }
    Ok(functions)
}
