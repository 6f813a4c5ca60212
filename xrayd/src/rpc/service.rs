//! The RPCs: authorise, convert inward, call the registry on a blocking thread, convert outward.

use std::{sync::Arc, time::Duration};

use tokio::{sync::mpsc, task::spawn_blocking};
use tokio_stream::wrappers::ReceiverStream;
use tonic::{Request, Response, Status, Streaming};
use xray_trace::instr_map::Selection;
use xrayd_proto::v1::{self, xrayd_server::Xrayd};

use super::{
    admission::{Admission, Admitted},
    authorise::{self, Deed, Outcomes, Traced, Whom},
    convert, counts, error,
    fetch::{CHUNKS, READER_PATIENCE, send_shot},
    live::{self, EventMessages, TraceMessages},
    profile::{self, Profiles},
    trigger::{self, Plan, Triggering, Watched},
    undo::{Unanswered, Undo},
};
use crate::{
    Pid,
    refusal::{Reason, Refusal},
    session::{
        AttachOptions, Attached, Caller, Economy, FunctionRow, Reach, Registry, Run, Shot, Switch,
        ToggleReport, Wanted,
    },
    sys::now_anchor,
};

/// Blocking calls of one user at a time.
const CALLS_PER_USER: u32 = 16;

/// Open streams of one user at a time.
const STREAMS_PER_USER: u32 = 32;
/// How long a client that has its answer may take to undo by itself what is to be undone.
const ANSWERED_PATIENCE: Duration = Duration::from_secs(10);

/// Messages of a live stream that wait for the connection.
const QUEUED_MESSAGES: usize = 4;

/// Functions of one message of ListFunctions.
const FUNCTIONS_PER_BATCH: usize = 1024;

/// What a call answers.
type Answer<T> = Result<Response<T>, Status>;

/// The service. Cloning shares everything.
#[derive(Debug, Clone)]
pub(super) struct Service {
    registry: Registry,
    calls: Arc<Admission>,
    streams: Arc<Admission>,
}

// === impl Service ===

impl Service {
    pub(super) fn new(registry: Registry) -> Self {
        Self {
            registry,
            calls: Admission::new(CALLS_PER_USER),
            streams: Admission::new(STREAMS_PER_USER),
        }
    }

    /// Runs a live stream to its end, and undoes what its reader wanted undone if that is gone before.
    fn follow(
        &self,
        stream: impl Future<Output = live::Ending> + Send + 'static,
        undo: Option<Undo>,
        (caller, pid, traced): (Caller, Pid, Traced),
    ) {
        let registry = self.registry.clone();
        tokio::spawn(async move {
            match stream.await {
                live::Ending::Over => return,
                live::Ending::Early => {}
                live::Ending::Answered => tokio::time::sleep(ANSWERED_PATIENCE).await,
            }
            if let Some(what) = undo {
                // Not among the calls that a user may have at a time: it has to be done.
                let undoing = spawn_blocking(move || what.undo(&registry, caller, pid, &traced));
                // A panic was logged where it happened.
                let _ = undoing.await;
            }
        });
    }

    /// Runs `call` on a thread that may block.
    async fn blocking<T: Send + 'static>(
        &self,
        caller: Caller,
        call: impl FnOnce(&Registry) -> Result<T, Refusal> + Send + 'static,
    ) -> Result<T, Status> {
        let admitted = self
            .calls
            .admit(caller.uid)
            .ok_or_else(|| error::too_many("calls", caller.uid))?;
        let registry = self.registry.clone();
        let done = spawn_blocking(move || {
            // Given back when the call ends, which is later than now if the client leaves.
            let _admitted = admitted;
            call(&registry)
        });
        // A panic was logged where it happened.
        Ok(done.await.map_err(|_| error::bug())??)
    }

    fn stream(&self, caller: Caller) -> Result<Admitted, Status> {
        self.streams
            .admit(caller.uid)
            .ok_or_else(|| error::too_many("streams", caller.uid))
    }

    /// Switches functions of one process or of all of the caller's.
    async fn toggle(
        &self,
        request: Request<v1::ToggleRequest>,
        switch: Switch,
    ) -> Answer<v1::ToggleResponse> {
        let caller = authorise::caller(&request)?;
        let v1::ToggleRequest {
            pid,
            selection,
            dry_run,
            capture,
            loan,
        } = request.into_inner();
        let whom = Whom::try_from(pid)?;
        let to = convert::wanted(switch, capture)?;
        let run = if dry_run { Run::Dry } else { Run::Real };
        let toggle = convert::toggle(selection, to, loan, run)?;
        let reports = self
            .blocking(caller, move |registry| {
                for_each(registry, caller, whom, toggle.deed(), |traced| {
                    let reports = traced.toggle(registry, caller, &toggle);
                    for (pid, report) in &reports {
                        audit_toggle(caller, *pid, to, run, report);
                    }
                    reports
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

/// What was done to each process; if it is one that is named, and alone, its refusal is the call's.
fn for_each<T>(
    registry: &Registry,
    caller: Caller,
    whom: Whom,
    deed: Deed,
    mut call: impl FnMut(&Traced) -> Outcomes<T>,
) -> Result<Outcomes<T>, Refusal> {
    let mut reports = Vec::new();
    for traced in authorise::all_traced(registry, caller, whom, deed)? {
        reports.extend(call(&traced));
    }
    if let (Whom::One(_), [(_, Err(_))]) = (whom, &*reports)
        && let Some((_, Err(refusal))) = reports.pop()
    {
        return Err(refusal);
    }
    Ok(reports)
}

/// The log line that says who switched what.
pub(super) fn audit_toggle(
    caller: Caller,
    pid: Pid,
    to: Wanted,
    run: Run,
    report: &Result<ToggleReport, Refusal>,
) {
    match (run, report) {
        (Run::Dry, _) => {}
        (Run::Real, Ok(report)) => tracing::info!(
            uid = caller.uid,
            caller = caller.pid,
            %pid,
            ?to,
            matched = report.matched,
            changed = report.changed,
            "toggled"
        ),
        (Run::Real, Err(refusal)) => audit_refused(caller, pid, "toggle", refusal),
    }
}

fn audit_refused(caller: Caller, pid: Pid, what: &'static str, refusal: &Refusal) {
    let Refusal { reason, message } = refusal;
    tracing::warn!(uid = caller.uid, caller = caller.pid, %pid, what, %reason, message, "refused");
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
        authorise::caller(&request)?;
        let v1::GetInfoRequest {} = request.into_inner();
        Ok(Response::new(v1::GetInfoResponse {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            retain_bytes: self.registry.config().retain_bytes,
            daemon_pid: std::process::id(),
        }))
    }

    async fn list_processes(
        &self,
        request: Request<v1::ListProcessesRequest>,
    ) -> Answer<v1::ListProcessesResponse> {
        let caller = authorise::caller(&request)?;
        let v1::ListProcessesRequest {} = request.into_inner();
        let processes = self
            .blocking(caller, move |registry| {
                let shown = move |pid, owner| authorise::sees(caller, pid, owner);
                let mut processes = registry.list(shown)?;
                // Asked for again: a process may have become another user's meanwhile.
                processes.retain(|process| authorise::sees(caller, process.pid, process.uid));
                Ok(processes.into_iter().map(convert::process).collect())
            })
            .await?;
        Ok(Response::new(v1::ListProcessesResponse { processes }))
    }

    async fn preflight(
        &self,
        request: Request<v1::PreflightRequest>,
    ) -> Answer<v1::PreflightResponse> {
        let caller = authorise::caller(&request)?;
        let v1::PreflightRequest { pid } = request.into_inner();
        let pid = authorise::one(pid)?;
        let checks = self
            .blocking(caller, move |registry| {
                authorise::looking(registry, caller, pid, || registry.preflight(pid))
            })
            .await?;
        Ok(Response::new(convert::preflight(pid, checks)))
    }

    async fn attach(&self, request: Request<v1::AttachRequest>) -> Answer<v1::AttachResponse> {
        let caller = authorise::caller(&request)?;
        let request = request.into_inner();
        let pid = authorise::one(request.pid)?;
        let options = convert::attach_options(request)?;
        let (answer, unanswered) = self
            .blocking(caller, move |registry| {
                let options = AttachOptions {
                    payer: caller.payer(),
                    ..authorise::attaching(caller, pid, options)?
                };
                let Attached { session, report } = registry
                    .attach(pid, options)
                    .inspect_err(|refusal| audit_refused(caller, pid, "attach", refusal))?;
                authorise::check(caller, pid, session.uid())?;
                tracing::info!(
                    uid = caller.uid,
                    caller = caller.pid,
                    %pid,
                    owner = session.uid(),
                    adopted = report.adopted,
                    "attached"
                );
                let unanswered = Unanswered::new(registry, caller, pid, report.already);
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
        let caller = authorise::caller(&request)?;
        let v1::DetachRequest { pid } = request.into_inner();
        let whom = Whom::try_from(pid)?;
        let reports = self
            .blocking(caller, move |registry| {
                for_each(registry, caller, whom, Deed::Release, |traced| {
                    let reports = traced.end(registry);
                    for (pid, report) in &reports {
                        match report {
                            Ok(_) => {
                                tracing::info!(uid = caller.uid, caller = caller.pid, %pid, "detached")
                            }
                            Err(refusal) => audit_refused(caller, *pid, "detach", refusal),
                        }
                    }
                    reports
                })
            })
            .await?;
        let reports = reports
            .into_iter()
            .map(|(pid, report)| match report {
                Ok(report) => convert::detach_report(pid, report),
                Err(refusal) => convert::detach_refused(pid, refusal),
            })
            .collect();
        Ok(Response::new(v1::DetachResponse { reports }))
    }

    async fn list_functions(
        &self,
        request: Request<v1::ListFunctionsRequest>,
    ) -> Answer<Self::ListFunctionsStream> {
        let caller = authorise::caller(&request)?;
        let v1::ListFunctionsRequest { pid, selection } = request.into_inner();
        let whom = Whom::try_from(pid)?;
        let selection = selection.map(convert::selection).transpose()?;
        let admitted = self.stream(caller)?;
        let functions = self
            .blocking(caller, move |registry| {
                functions(registry, caller, whom, selection.as_ref())
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        tokio::spawn(async move {
            let _admitted = admitted;
            let mut functions = functions.into_iter().peekable();
            while functions.peek().is_some() {
                let batch = functions.by_ref().take(FUNCTIONS_PER_BATCH);
                let batch = batch
                    .map(|(pid, row)| convert::function(pid, row))
                    .collect();
                let sent = sender.send(Ok(v1::FunctionBatch { functions: batch }));
                // A reader that is gone or stands still is not waited for.
                if !matches!(
                    tokio::time::timeout(READER_PATIENCE, sent).await,
                    Ok(Ok(()))
                ) {
                    return;
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn enable(&self, request: Request<v1::ToggleRequest>) -> Answer<v1::ToggleResponse> {
        self.toggle(request, Switch::On).await
    }

    async fn disable(&self, request: Request<v1::ToggleRequest>) -> Answer<v1::ToggleResponse> {
        self.toggle(request, Switch::Off).await
    }

    async fn set_mode(&self, request: Request<v1::SetModeRequest>) -> Answer<v1::SetModeResponse> {
        let caller = authorise::caller(&request)?;
        let request = request.into_inner();
        let mode = convert::mode(request.mode())?;
        let whom = Whom::try_from(request.pid)?;
        let reports = self
            .blocking(caller, move |registry| {
                for_each(registry, caller, whom, Deed::Use, |traced| {
                    let reports = traced.set_mode(mode);
                    for (pid, before) in &reports {
                        match before {
                            Ok(before) => {
                                tracing::info!(uid = caller.uid, caller = caller.pid, %pid, %mode, %before, "mode set")
                            }
                            Err(refusal) => audit_refused(caller, *pid, "mode", refusal),
                        }
                    }
                    reports
                })
            })
            .await?;
        let reports = reports.into_iter();
        let reports = reports.map(|(pid, before)| convert::mode_report(pid, before));
        Ok(Response::new(v1::SetModeResponse {
            reports: reports.collect(),
        }))
    }

    async fn set_filter(
        &self,
        request: Request<v1::SetFilterRequest>,
    ) -> Answer<v1::SetFilterResponse> {
        let caller = authorise::caller(&request)?;
        let v1::SetFilterRequest { pid, filter } = request.into_inner();
        let filter = filter.map(convert::filter);
        if let Some(filter) = &filter {
            filter.check()?;
        }
        let whom = Whom::try_from(pid)?;
        let reports = self
            .blocking(caller, move |registry| {
                for_each(registry, caller, whom, Deed::Use, |traced| {
                    let pid = traced.sessions().first().map(|session| session.pid());
                    let outcomes = traced.set_filter(filter.as_ref());
                    let reports = outcomes.unwrap_or_else(|refusal| {
                        pid.map(|pid| (pid, Err(refusal))).into_iter().collect()
                    });
                    for (pid, before) in &reports {
                        match before {
                            Ok(_) if filter.is_none() => {}
                            Ok(_) => tracing::info!(uid = caller.uid, caller = caller.pid, %pid, ?filter, "filter set"),
                            Err(refusal) => audit_refused(caller, *pid, "filter", refusal),
                        }
                    }
                    reports
                })
            })
            .await?;
        let reports = reports.into_iter();
        let reports = reports.map(|(pid, before)| convert::filter_report(pid, before));
        Ok(Response::new(v1::SetFilterResponse {
            reports: reports.collect(),
        }))
    }

    async fn set_economy(
        &self,
        request: Request<v1::SetEconomyRequest>,
    ) -> Answer<v1::SetEconomyResponse> {
        let caller = authorise::caller(&request)?;
        let v1::SetEconomyRequest { pid, economy } = request.into_inner();
        let economy = economy.map(convert::economy).transpose()?;
        economy.map_or(Ok(()), Economy::check)?;
        let whom = Whom::try_from(pid)?;
        let reports = self
            .blocking(caller, move |registry| {
                for_each(registry, caller, whom, Deed::Use, |traced| {
                    let pid = traced.sessions().first().map(|session| session.pid());
                    let outcomes = traced.set_economy(economy);
                    let reports = outcomes.unwrap_or_else(|refusal| {
                        pid.map(|pid| (pid, Err(refusal))).into_iter().collect()
                    });
                    for (pid, before) in &reports {
                        match before {
                            Ok(_) if economy.is_none() => {}
                            Ok(_) => tracing::info!(uid = caller.uid, caller = caller.pid, %pid, ?economy, "economy set"),
                            Err(refusal) => audit_refused(caller, *pid, "economy", refusal),
                        }
                    }
                    reports
                })
            })
            .await?;
        let reports = reports.into_iter();
        let reports = reports.map(|(pid, before)| convert::economy_report(pid, before));
        Ok(Response::new(v1::SetEconomyResponse {
            reports: reports.collect(),
        }))
    }

    async fn get_status(&self, request: Request<v1::StatusRequest>) -> Answer<v1::StatusResponse> {
        let caller = authorise::caller(&request)?;
        let v1::StatusRequest { pid } = request.into_inner();
        let whom = Whom::try_from(pid)?;
        let processes = self
            .blocking(caller, move |registry| {
                let traced = authorise::all_traced(registry, caller, whom, Deed::Use)?;
                Ok(traced.iter().flat_map(statuses).collect())
            })
            .await?;
        Ok(Response::new(v1::StatusResponse { processes }))
    }

    async fn stream_events(
        &self,
        request: Request<v1::StreamEventsRequest>,
    ) -> Answer<Self::StreamEventsStream> {
        let caller = authorise::caller(&request)?;
        let v1::StreamEventsRequest {
            pid,
            selection,
            undo,
        } = request.into_inner();
        let pid = authorise::one(pid)?;
        let what = undo.map(Undo::try_from).transpose()?;
        let selection = selection.map(convert::selection).transpose()?;
        let admitted = self.stream(caller)?;
        let (traced, feed, encoder) = self
            .blocking(caller, move |registry| {
                let traced = authorise::traced(registry, caller, pid, Deed::Use)?;
                let feed = traced.subscribe();
                let first = traced.sessions().into_iter().next();
                let mut anchors = first.map(|first| first.anchors()).unwrap_or_default();
                // A session that has just begun has one anchor, and the counter's rate is not known without another.
                anchors.push(now_anchor().map_err(|error| {
                    Refusal::new(Reason::Io, format!("cannot read the clock: {error}"))
                })?);
                Ok((traced, feed, EventMessages::new(selection, anchors)))
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        let stream = live::run(feed, encoder, sender, admitted);
        self.follow(stream, what, (caller, pid, traced));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn stream_trace(
        &self,
        request: Request<v1::StreamTraceRequest>,
    ) -> Answer<Self::StreamTraceStream> {
        let caller = authorise::caller(&request)?;
        let v1::StreamTraceRequest { pid, undo } = request.into_inner();
        let pid = authorise::one(pid)?;
        let what = undo.map(Undo::try_from).transpose()?;
        let admitted = self.stream(caller)?;
        let (traced, feed, encoder) = self
            .blocking(caller, move |registry| {
                let traced = authorise::traced(registry, caller, pid, Deed::Use)?;
                let feed = traced.subscribe();
                let encoder = TraceMessages::new()
                    .map_err(|error| Refusal::new(Reason::Io, format!("no trace: {error}")))?;
                Ok((traced, feed, encoder))
            })
            .await?;
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        let stream = live::run(feed, encoder, sender, admitted);
        self.follow(stream, what, (caller, pid, traced));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_trace(
        &self,
        request: Request<v1::FetchTraceRequest>,
    ) -> Answer<Self::FetchTraceStream> {
        let caller = authorise::caller(&request)?;
        let v1::FetchTraceRequest { pid, last_ns } = request.into_inner();
        let whom = Whom::try_from(pid)?;
        let reach = match last_ns {
            0 => Reach::All,
            last_ns => Reach::Last(Duration::from_nanos(last_ns)),
        };
        let admitted = self.stream(caller)?;
        let sessions = self
            .blocking(caller, move |registry| {
                authorise::everybody(registry, caller, whom)
            })
            .await?;
        tracing::info!(
            uid = caller.uid,
            caller = caller.pid,
            pid,
            "snapshot asked for"
        );
        let (sender, receiver) = mpsc::channel(CHUNKS);
        spawn_blocking(move || {
            let _admitted = admitted;
            send_shot(Shot::take(sessions, reach), sender);
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_counts(
        &self,
        request: Request<v1::FetchCountsRequest>,
    ) -> Answer<Self::FetchCountsStream> {
        let caller = authorise::caller(&request)?;
        let pid = authorise::one(request.into_inner().pid)?;
        let admitted = self.stream(caller)?;
        let counted = self
            .blocking(caller, move |registry| {
                let traced = authorise::traced(registry, caller, pid, Deed::Use)?;
                counts::get(&traced, pid)
            })
            .await?;
        let (sender, receiver) = mpsc::channel(CHUNKS);
        tokio::spawn(async move {
            let _admitted = admitted;
            for (session, counts) in counted {
                for message in counts::messages(&session, &counts) {
                    let sent = sender.send(Ok(message));
                    // A reader that is gone or stands still is not waited for.
                    if !matches!(
                        tokio::time::timeout(READER_PATIENCE, sent).await,
                        Ok(Ok(()))
                    ) {
                        return;
                    }
                }
            }
        });
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn fetch_profile(
        &self,
        request: Request<Streaming<v1::FetchProfileRequest>>,
    ) -> Answer<Self::FetchProfileStream> {
        let caller = authorise::caller(&request)?;
        let mut requests = request.into_inner();
        let first = requests.message().await?;
        let v1::FetchProfileRequest {
            pid,
            from_now,
            undo,
        } = first.ok_or_else(|| Status::invalid_argument("no request was sent"))?;
        let pid = authorise::one(pid)?;
        let what = undo.map(Undo::try_from).transpose()?;
        let admitted = self.stream(caller)?;
        let (traced, profiles) = self
            .blocking(caller, move |registry| {
                let traced = authorise::traced(registry, caller, pid, Deed::Use)?;
                let profiles = Profiles::begin(&traced, pid, from_now)?;
                Ok((traced, profiles))
            })
            .await?;
        tracing::info!(uid = caller.uid, caller = caller.pid, %pid, from_now, "profile asked for");
        let (sender, receiver) = mpsc::channel(CHUNKS);
        let stream = profile::run(profiles, requests, sender, admitted);
        self.follow(stream, what, (caller, pid, traced));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }

    async fn trigger(
        &self,
        request: Request<Streaming<v1::TriggerRequest>>,
    ) -> Answer<Self::TriggerStream> {
        let caller = authorise::caller(&request)?;
        let mut requests = request.into_inner();
        let first = requests.message().await?;
        let first = first.ok_or_else(|| Status::invalid_argument("no request was sent"))?;
        let pid = first.pid;
        let admitted = self.stream(caller)?;
        let (plan, begun) = self
            .blocking(caller, move |registry| {
                // Patterns are compiled, which takes its time.
                let plan = Plan::try_from(first)?;
                let begun = Watched::begin(registry, caller, &plan)?;
                Ok((plan, begun))
            })
            .await?;
        tracing::info!(uid = caller.uid, caller = caller.pid, pid, "trigger armed");
        let (sender, receiver) = mpsc::channel(QUEUED_MESSAGES);
        // There is room for it.
        let _ = sender.try_send(Ok(trigger::armed(&begun.0)));
        let triggering = Triggering::new(plan, begun, sender);
        tokio::spawn(triggering.run(requests, admitted));
        Ok(Response::new(ReceiverStream::new(receiver)))
    }
}

/// A row for each process.
fn statuses(traced: &Traced) -> Vec<v1::ProcessStatus> {
    let sessions = traced.sessions();
    let rows = sessions
        .iter()
        .map(|session| convert::status(session.status()))
        .collect();
    match traced {
        Traced::Family(family) => convert::family(family.status(), rows),
        Traced::Session(_) => rows,
    }
}

/// Functions with the process they belong to, in the order of pid and id.
fn functions(
    registry: &Registry,
    caller: Caller,
    whom: Whom,
    selection: Option<&Selection>,
) -> Result<Vec<(Pid, FunctionRow)>, Refusal> {
    let with_pid = |pid, rows: Vec<FunctionRow>| rows.into_iter().map(move |row| (pid, row));
    if let Whom::One(pid) = whom
        && registry.get(pid).is_none()
    {
        let rows = authorise::looking(registry, caller, pid, || registry.inspect(pid))?;
        let rows = match selection {
            Some(selection) => convert::matching(rows, selection)?,
            None => rows,
        };
        return Ok(with_pid(pid, rows).collect());
    }
    let mut functions = Vec::new();
    for session in authorise::sessions(registry, caller, whom)? {
        functions.extend(with_pid(session.pid(), session.functions(selection)?));
    }
    Ok(functions)
}
