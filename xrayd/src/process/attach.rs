//! The steps from a process to a session, on a thread of the attach. Following and the
//! registry of sessions are elsewhere.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    path::PathBuf,
    sync::{Arc, OnceLock, atomic::Ordering},
    time::{Duration, Instant},
};

use shm_ring::Geometry;
use xray_trace::model::{FunctionId, Process, ProcessId, Ticks};

use super::{
    attach_options::AttachOptions,
    attach_report::{AttachReport, SkippedSleds, gaps_before, other_rings},
    earlier_sums::sums_before,
    session::Session,
    session_record::{KeptForNext, SessionKeeper},
    started::Started,
};
use crate::{
    collect::{Collectors, Promises, RingSizes, SiteTable, SumsKeeper, events_since, spawn_drain},
    control::{
        ChoiceKeeper, Commands, CompiledChoices, Control, Controller, Governor, Held, Holder,
        Loading, Patching, PreparedUpdate, Reading, SessionNumbers, Shared, Staged, StartedChild,
        TracedModules, Watch, adds_up, call_site_of, limit_profiles, patch_sites, range_of,
        staged_sites, stubs_of,
    },
    export::{OpenSegments, ProcessTables, SegmentArchive, SumsWriter, TraceSource, damage_before},
    inject::{
        DispatchMode, Layout, Neighbourhood, Patcher, RingsNeeded, RunState, SwitchedSites, Victim,
        clear_live, crowded, install,
    },
    pid::{Pid, TargetAddr, Tid},
    quotas::{Resource, Ticket},
    refusal::{Reason, Refusal, Result},
    store::{EventStore, Metering, Subject, SumsTrace},
    sys::{Claim, Memory, now_anchor, ptrace::Stopped, ticks_now},
    target::{
        Credentials, Functions, Indexes, Launch, Module, Objects, PerfWatcher, Preflight,
        RefusedModule, Survey, Target, Threads, VmSize, Yama, preflight,
    },
    types::{Budget, Mode, PatchSite, Settings, SettingsUpdate, Switch, Wanted},
};

/// Longest wait for another tracer to go, and the pause between attempts.
const CLAIM_PATIENCE: Duration = Duration::from_secs(1);
const CLAIM_POLL: Duration = Duration::from_millis(5);
/// The reason for leaving a sled alone that shares its name in the rings with another sled.
const AMBIGUOUS: &str = "xrayd could not distinguish their events from those of another sled";

/// A session that was attached or found.
#[derive(Debug, Clone)]
pub struct Attached {
    /// The session.
    pub session: Arc<Session>,
    /// The result of the attach. Empty if the process was attached already.
    pub report: AttachReport,
}

/// State that all sessions share, and the ticket of a new one.
#[derive(Debug)]
pub(super) struct Common {
    pub(crate) objects: Arc<Objects>,
    pub(crate) perf_watcher: Arc<PerfWatcher>,
    /// The metrics of all sessions, if metrics are enabled.
    pub(crate) metering: Option<Arc<Metering>>,
    /// Memory that is promised to the rings of all sessions.
    pub(crate) promises: Arc<Promises>,
    /// The threads that read rings.
    pub(crate) collectors: Collectors,
    /// What outlives the daemon. `None`: nothing.
    pub(crate) kept: Option<KeptForNext>,
    /// The new session's share of the quotas.
    pub(crate) ticket: Ticket,
}

/// How the session of a process begins.
#[derive(Debug)]
pub(super) enum Beginning {
    /// The process runs.
    Running(EarlierSession),
    /// xrayd started the process, and holds it.
    Started(Box<Started>),
}

/// The session of an earlier daemon, and what the new one does with its remains.
#[derive(Debug)]
pub(super) enum EarlierSession {
    /// There may have been one. All functions are off at the begin.
    Any,
    /// It goes on with the choices of that session. The process must have that daemon's memory, and
    /// must not have been detached from.
    Recorded {
        choices: Box<CompiledChoices>,
        /// See [`SessionRecord::session`](super::SessionRecord::session).
        session: u64,
    },
    /// It only ends what that session has left on. The process must have that daemon's memory.
    Left,
}

/// The result of [`prepare`], for the thread that attaches.
#[derive(Debug)]
pub(super) struct Prepared {
    pub(crate) session: Session,
    pub(crate) report: AttachReport,
    pub(crate) controller: Controller,
    pub(crate) commands: Commands,
    /// The thread of a program that xrayd started, and what says when it runs.
    pub(crate) held: Option<(Holder, Stopped)>,
}

/// Attaches. A program that xrayd started is held by the thread that calls this.
pub(crate) fn prepare(
    target: Target,
    common: Common,
    retain_bytes: u64,
    options: AttachOptions,
    beginning: Beginning,
) -> Result<Prepared> {
    let Common {
        objects,
        perf_watcher,
        metering,
        promises,
        collectors,
        kept,
        mut ticket,
    } = common;
    let pid = target.pid();
    if let Some(start_time) = options.start_time
        && start_time != target.start_time()
    {
        let message = format!(
            "process {pid} is another process than the one that was listed: its start time differs"
        );
        return Err(Refusal::new(Reason::PidReused, message));
    }
    let settings = Settings {
        mode: options.mode,
        budget: options.budget.clone(),
        ..Settings::default()
    };
    settings.check()?;
    let target = target.require(options.owner, options.caller);
    let geometry = Geometry::new(options.ring_bytes, options.max_threads)
        .map_err(|error| Refusal::new(Reason::Limit, error.to_string()))?;
    let (launch, started, earlier) = match beginning {
        Beginning::Running(earlier) => (Launch::ByOthers, None, earlier),
        Beginning::Started(started) => (Launch::ByUs, Some(*started), EarlierSession::Any),
    };
    let needs_memory = !matches!(earlier, EarlierSession::Any);
    let (recorded, number) = match earlier {
        EarlierSession::Recorded { choices, session } => (Some(*choices), Some(session)),
        EarlierSession::Any | EarlierSession::Left => (None, None),
    };
    let mut flight = preflight(&target, &objects, launch, options.sleds)?;
    flight.verdict()?;
    let tid = target.live_thread()?;
    let memory =
        Memory::open(pid, tid).map_err(|error| Refusal::from_io(pid, "open its memory", &error))?;
    let memory = Arc::new(memory);
    target.check_owner()?;
    // The credentials are those of all threads, because all threads share the memory that is open.
    let credentials = Credentials::of(pid).ok_or_else(|| target.exited())?;
    if let Some(caller) = options.caller {
        let rule = caller.may_trace(&credentials, Yama::Off, || false);
        rule.map_err(|denial| denial.refusal(pid))?;
    }
    let claim = claim(pid, tid)?;
    // The order matters: what is declared last is dropped first.
    let (mut thread, child, undo) = match started {
        Some(Started {
            undo,
            child,
            thread,
        }) => (Some(thread), Some(child), Some(undo)),
        None => (None, None, None),
    };
    let victim = match (&mut thread, options.thread) {
        (Some(thread), _) => Victim::Held(thread),
        (None, Some(tid)) => Victim::Thread(tid),
        (None, None) => Victim::Any,
    };
    let neighbourhoods = neighbourhoods(&mut flight, &target, &memory)?;
    let mut sizes = RingSizes::new(pid, geometry, promises);
    let choose = |needed: RingsNeeded| {
        if needs_memory && needed == RingsNeeded::New {
            let message = format!(
                "process {pid}: there is no memory of an earlier xrayd in it: no xrayd has attached \
                 to the program that it runs now"
            );
            return Err(Refusal::new(Reason::NotAttached, message));
        }
        let chosen = sizes.choose(needed)?;
        ticket.set(&[(Resource::Mapped, chosen.geometry.rings_bytes())])?;
        Ok(chosen)
    };
    let (mut installed, table_session) =
        install(&target, &memory, &neighbourhoods, victim, choose)?;
    if recorded.is_some() && !installed.was_live {
        // Its table is as before.
        let _ = clear_live(&memory, TargetAddr(installed.layout.table));
        let message = format!(
            "process {pid}: the earlier daemon has detached from it, and could not remove the record"
        );
        return Err(Refusal::new(Reason::NotAttached, message));
    }
    let (budget, limited) = sizes.into_parts(installed.layout.geometry);
    let ring_refusal = budget.refusal();
    let ticket = Arc::new(ticket);

    let mut report = AttachReport {
        adopted: installed.adopted,
        stopped: installed.stopped,
        ..AttachReport::default()
    };
    let other = || other_rings(geometry, installed.layout.geometry);
    report.notes.extend(limited.or_else(other));
    let gathered = gather(&flight.surveyed, &flight.refused, &mut report);
    let functions = Arc::new(Functions::new(pid));
    let mut by_module = gathered.sites.into_iter();
    for (module, _) in &flight.surveyed {
        functions.add(module.clone(), by_module.next().unwrap_or_default());
    }
    let modules = functions.modules();
    let others = installed.others.clone();
    let regions = std::mem::take(&mut installed.regions);
    if !others.is_empty() {
        report.notes.push(
            "the process has memory of another version of xrayd, which stays unused".to_owned(),
        );
    }
    let staged = gathered.staged.iter();
    let mut patcher = Patcher::new(
        pid,
        &memory,
        &flight.maps,
        modules
            .iter()
            .map(|loaded| (loaded.index, loaded.module.clone())),
        (regions, others.clone()),
        staged.map(|staged| (staged.site, staged.target)),
    );
    // The program goes on to add calls up, if it did so for an earlier daemon.
    let wants_sums = recorded
        .as_ref()
        .is_some_and(|choices| adds_up(&choices.settings));
    let goes_on = wants_sums && patcher.adds_up(&memory, &installed.layout)?;
    let mut switched = match goes_on {
        true => {
            limit_profiles(pid, &memory, &installed.layout)?;
            SwitchedSites::read(&memory, &installed.layout)
                .map_err(|error| Refusal::from_io(pid, "read its rings", &error))?
        }
        false => SwitchedSites::new(),
    };
    // Otherwise the dispatch mode of an earlier daemon or of the parent process does not hold any
    // more.
    if !goes_on {
        let dispatch_mode = match options.mode {
            Mode::Count => DispatchMode::Count,
            _ => DispatchMode::None,
        };
        patcher.set_dispatch_mode(&memory, dispatch_mode)?;
    }
    let is_recovered = recorded.is_some();
    let recorded = recorded.map(|choices| {
        let effect = choices.effect(&functions);
        (choices, effect)
    });
    // Functions that an earlier daemon's session has on stay on. So they record without a gap.
    let staying = recorded.iter().flat_map(|(_, effect)| effect.on.values());
    let staying: HashMap<u64, PatchSite> = staying
        .flat_map(|ids| functions.sites(ids))
        // While calls are counted, exit sleds are off.
        .filter(|site| options.mode != Mode::Count || site.kind.is_entry())
        .map(|site| (site.address, site))
        .collect();
    let found_on = gathered.staged.iter();
    let found_on = found_on.filter(|staged| staged.state == Switch::On);
    let (stay, left_on): (Vec<PatchSite>, Vec<PatchSite>) = found_on
        .map(|staged| staged.site)
        .partition(|site| staying.contains_key(&site.address));
    if goes_on {
        // A budget has switched the others off. Calls of theirs may have ended unseen by now.
        let stay: HashSet<u64> = stay.iter().map(|site| site.address).collect();
        let others = staying.into_values();
        let others = others.filter(|site| !stay.contains(&site.address));
        mark_switched(&mut switched, others, (pid, &memory, &installed.layout))?;
    }
    if !left_on.is_empty() {
        // An earlier daemon died and left them on.
        let run_state = match thread {
            Some(_) => RunState::Halted,
            None => RunState::Running,
        };
        patcher.switch(&memory, &target, run_state, &left_on, Wanted::Off)?;
        if goes_on {
            let sites = left_on.iter().copied();
            mark_switched(&mut switched, sites, (pid, &memory, &installed.layout))?;
        }
        report.notes.push(format!(
            "{} sleds were left on by an earlier daemon; they are off now",
            left_on.len()
        ));
        report.left_on = left_on.len() as u64;
    }
    let mut table = SiteTable::new();
    let since = events_since(&installed.rings);
    for loaded in &modules {
        for (id, site) in loaded.sites() {
            table.insert(call_site_of(site, id), since);
        }
    }
    let process = describe_process(&target);
    let output = Arc::new(EventStore::new(process.id, functions.ids(), retain_bytes));
    let attached = now_anchor().map_err(|error| Refusal::from_io(pid, "read the clock", &error))?;
    output.anchor(attached);
    output.set_mode(options.mode);
    output
        .is_metered
        .store(metering.is_some(), Ordering::Relaxed);
    let meter = metering
        .as_ref()
        .and_then(|metering| metering.meter(&functions));
    if let Some(meter) = &meter {
        output.profiles.measure(Arc::clone(meter));
    }
    for loaded in &modules {
        output.profiles.came(&functions, loaded);
    }
    let layout = installed.layout;
    // The retained events stay for the next daemon if this fails.
    let size =
        VmSize::open(pid).map_err(|error| Refusal::from_io(pid, "open its statm", &error))?;
    let (gaps, notes): (Vec<_>, Vec<_>) =
        gaps_before(&installed, attached.ticks).into_iter().unzip();
    report.notes.extend(notes);
    let shared = Arc::new(Shared::new(functions.ids(), flight.refused));
    let earlier = kept.as_ref().map(|kept| {
        let its = (pid, process.start_time_ticks, number);
        let segments = kept
            .segments
            .take_found(|name| (name.pid, name.start_time, Some(name.session)) == its);
        let opened = OpenSegments::open(pid, process.start_time_ticks, segments);
        opened.read(&process, &functions, attached.ticks)
    });
    let earlier = earlier.unwrap_or_default();
    // No other session of this process has begun at this count.
    let number = number.unwrap_or(attached.ticks.0);
    output.identify(number);
    let tables = Arc::new(ProcessTables {
        process,
        functions: Arc::clone(&functions),
        shared: Arc::clone(&shared),
        earlier: earlier.choices,
    });
    let earlier_sums = match is_recovered {
        true => sums_before(&installed, options.mode, &tables),
        false => None,
    };
    if earlier_sums.as_ref().is_some_and(|sums| sums.is_incomplete) {
        shared.add_gap(damage_before(tables.process.id, attached.ticks));
    }
    let keeper = SumsKeeper {
        trace: kept.is_some().then(|| {
            let writer = SumsWriter::new(Arc::clone(&tables));
            Box::new(writer) as Box<dyn SumsTrace>
        }),
        earlier: earlier_sums,
        adds_up: goes_on,
    };
    if let Some(kept) = &kept {
        let store = Arc::clone(&kept.segments);
        let next = (number, earlier.next);
        let archive = SegmentArchive::new(store, Arc::clone(&tables), next, earlier.segments);
        output.archive_in(Box::new(archive));
        output.adopt(earlier.events);
    }
    for gap in earlier.gaps.into_iter().chain(gaps) {
        shared.add_gap(gap);
    }
    let drain = spawn_drain(
        &collectors,
        pid,
        Arc::clone(&memory),
        installed,
        budget,
        table,
        (Arc::clone(&output), keeper, Arc::clone(&ticket)),
    )
    .map_err(|error| {
        output.leave_archive();
        Refusal::from_io(pid, "start a thread", &error)
    })?;
    shared.set_drain(drain);
    // The rings are read by now, so this may take its time.
    let damaged = output.drop_damaged();
    if damaged > 0 {
        tracing::warn!(
            %pid, blocks = damaged,
            "left out damaged blocks of retained events of an earlier daemon"
        );
        shared.add_gap(damage_before(tables.process.id, attached.ticks));
    }
    let (control, commands) = Control::new(pid, Arc::clone(&shared), Arc::clone(&output));
    let metered = metering.map(|metering| {
        let subject = Subject {
            pid,
            uid: credentials.user,
            process: tables.process.command.clone(),
            attached_wall_ns: attached.wall_ns,
        };
        let numbers = SessionNumbers {
            output: Arc::clone(&output),
            shared: Arc::clone(&shared),
            functions: Arc::clone(&functions),
            meter,
        };
        metering.enter(subject, numbers)
    });
    let loading = Loading::new(
        objects,
        functions.ids(),
        (&flight.maps, size),
        Watch::new(pid, Arc::clone(&shared), perf_watcher, commands.waker()),
    );
    let traced = TracedModules::new(Arc::clone(&functions));
    let keeper = kept.map(|kept| {
        let identity = (pid, tables.process.start_time_ticks, number);
        Arc::new(SessionKeeper::new(kept, identity, credentials, &options))
    });
    let session = Session {
        pid,
        credentials,
        facts: crate::target::ProcessFacts::of(pid, false),
        keeper: keeper.clone(),
        command_line: target.command(),
        source: TraceSource {
            tables,
            output: Arc::clone(&output),
            control,
            kinship: OnceLock::new(),
        },
        ring_bytes: layout.geometry.ring_bytes(),
        max_threads: layout.geometry.slots() / 2,
        ring_refusal,
        attached,
        by_policy: options.by_policy,
        _metered: metered,
        ticket: Arc::clone(&ticket),
    };
    let (held, holder) = thread.is_some().then(|| Held::new(pid)).unzip();
    if let Some(held) = &held {
        memory.traced_by(held.tracer());
    }
    let mut controller = Controller {
        patching: Patching {
            target,
            memory,
            patcher,
            traced,
            layout,
            output,
            shared,
            held,
            switched,
            noted_from: None,
            is_resuming: false,
            has_room_for_rings: false,
        },
        loading,
        reading: Reading::default(),
        table: TargetAddr(layout.table),
        child: StartedChild(child),
        claim: Some((table_session, claim)),
        held_at: attached.ticks,
        attached,
        seen: Instant::now(),
        governor: Governor::default(),
        keeper: keeper.map(|keeper| keeper as Arc<dyn ChoiceKeeper>),
        ticket,
    };
    if let Some((choices, effect)) = recorded {
        let of = Indexes::of(&modules);
        // If the process has ended meanwhile, the session ends as usual, with what is retained.
        if let Err(refusal) = controller.resume_choices(choices, effect, &of)
            && !controller.patching.target.has_exited()
        {
            controller.patching.output.leave_archive();
            if let Err(second) = controller.detach() {
                tracing::error!(%pid, %second, "cannot detach from a process");
            }
            return Err(refusal);
        }
    } else if options.budget != Budget::None {
        let update = SettingsUpdate::from(options.budget);
        let prepared = PreparedUpdate::new(pid, update, attached, &controller.ticket)?;
        controller.update(prepared)?;
    }
    if let Some(undo) = undo {
        undo.disarm();
    }
    controller.keep_choices();
    // No sled calls into it any more.
    for other in &others {
        other.give_back_rings(pid);
    }
    Ok(Prepared {
        session,
        report,
        controller,
        commands,
        held: holder.zip(thread),
    })
}

/// The refusal for a failed attach. After the end of the process each step fails in its own way, so
/// all such failures get one refusal.
pub(super) fn unless_ended(pid: Pid, start_time: u64, refusal: Refusal) -> Refusal {
    let there = Target::open(pid).is_ok_and(|target| {
        // A process that is about to end has given its memory back already.
        target.start_time() == start_time && target.live_thread().is_ok()
    });
    if there {
        return refusal;
    }
    let message = format!("process {pid} ended during the attach");
    Refusal::new(Reason::TargetExited, message)
}

/// Marks sites whose functions an earlier daemon has switched while calls are added up.
fn mark_switched(
    switched: &mut SwitchedSites,
    sites: impl Iterator<Item = PatchSite>,
    (pid, memory, layout): (Pid, &Memory, &Layout),
) -> Result<()> {
    let names: Vec<u32> = sites
        .map(|site| call_site_of(&site, FunctionId(0)).name)
        .collect();
    if names.is_empty() {
        return Ok(());
    }
    let marked = switched.mark(memory, layout, &names, ticks_now());
    marked.map_err(|error| Refusal::from_io(pid, "write to its table", &error))
}

/// The ranges that need trampolines. A module without room for trampolines in its reach is refused,
/// and other modules are not.
fn neighbourhoods(
    flight: &mut Preflight,
    target: &Target,
    memory: &Memory,
) -> Result<Vec<Neighbourhood>> {
    let range_of_module = |survey: &Survey| range_of(patch_sites(survey, 0).map(|(_, site)| site));
    let needs = flight.surveyed.iter().map(|(_, survey)| {
        let stubs = stubs_of(patch_sites(survey, 0).map(|(_, site)| site));
        (range_of_module(survey), stubs)
    });
    let mut all = Neighbourhood::group(needs.filter(|(range, _)| !range.is_empty()));
    if all.is_empty() {
        // No module has sleds yet, and libraries may be loaded anywhere. So the trampolines go near
        // the first text of a file. A later attach finds them by the code mapping.
        let mut maps = flight.maps.iter();
        let text = maps.find(|entry| entry.executable() && entry.is_file());
        all.extend(text.map(|entry| Neighbourhood {
            range: entry.range.clone(),
            stubs: 0,
        }));
    }
    let crowded = crowded(target, memory, &all)?;
    all.retain(|one| crowded.iter().all(|(crowded, _)| crowded != one));
    let refusal_of = |survey: &Survey| {
        let start = range_of_module(survey).start;
        let mut crowded = crowded.iter();
        let found = crowded.find(|(crowded, _)| crowded.range.contains(&start));
        found.map(|(_, refusal)| refusal.clone())
    };
    for (module, survey) in std::mem::take(&mut flight.surveyed) {
        match refusal_of(&survey) {
            Some(refusal) => flight.refused.push(RefusedModule {
                path: module.path.clone(),
                load: module.load,
                refusal,
            }),
            None => flight.surveyed.push((module, survey)),
        }
    }
    match crowded.into_iter().next() {
        Some((_, refusal)) if flight.surveyed.is_empty() => Err(refusal),
        _ => Ok(all),
    }
}

/// Locks the process against other tracers. Waits for a tracer that was just detached or killed.
pub(super) fn claim(pid: Pid, live: Tid) -> Result<Claim> {
    let deadline = Instant::now() + CLAIM_PATIENCE;
    loop {
        let taken = Claim::take(pid, live)
            .map_err(|error| Refusal::from_io(pid, "lock it against other tracers", &error))?;
        match taken {
            Some(claim) => return Ok(claim),
            None if Instant::now() < deadline => std::thread::sleep(CLAIM_POLL),
            None => {
                let message = format!("process {pid} is traced by another xrayd");
                return Err(Refusal::new(Reason::Busy, message));
            }
        }
    }
}

/// The usable sleds of all modules.
#[derive(Debug, Default)]
struct Gathered {
    /// For each module: its sleds, each with the index of its function in the module.
    sites: Vec<Vec<(u32, PatchSite)>>,
    /// Sleds that an earlier attach staged.
    staged: Vec<Staged>,
}

fn gather(
    surveyed: &[(Module, Survey)],
    refused: &[RefusedModule],
    report: &mut AttachReport,
) -> Gathered {
    let mut gathered = Gathered::default();
    let mut skipped: BTreeMap<&'static str, u64> = BTreeMap::new();
    let mut names = SiteTable::new();
    for (module, (_, survey)) in (0u32..).zip(surveyed) {
        for (&reason, &count) in &survey.skipped {
            *skipped.entry(reason).or_default() += count;
        }
        let found = survey.sites.len() as u64;
        let told_apart = |(_, site): &(u32, PatchSite)| {
            names.insert(call_site_of(site, FunctionId(0)), Ticks(0))
        };
        let mut sites = Vec::with_capacity(survey.sites.len());
        sites.extend(patch_sites(survey, module).filter(told_apart));
        let lost = found - sites.len() as u64;
        if lost > 0 {
            *skipped.entry(AMBIGUOUS).or_default() += lost;
        }
        gathered.sites.push(sites);
        gathered.staged.extend(staged_sites(survey, module));
    }
    report.skipped = skipped
        .into_iter()
        .map(|(reason, sleds)| SkippedSleds {
            reason: reason.to_owned(),
            sleds,
        })
        .collect();
    report.refused_modules = refused
        .iter()
        .map(|refused| (refused.path.clone(), refused.refusal.clone()))
        .collect();
    gathered
}

fn describe_process(target: &Target) -> Process {
    let pid = target.pid();
    let executable = std::fs::read_link(format!("{}/exe", Threads::proc_dir(pid)))
        .unwrap_or_else(|_| PathBuf::new());
    let host = nix::unistd::gethostname()
        .ok()
        .map(|name| name.to_string_lossy().into_owned());
    Process {
        id: ProcessId(0),
        pid: pid.as_u32(),
        start_time_ticks: target.start_time(),
        command: Threads::name(pid, pid.leader()),
        executable: executable.to_string_lossy().into_owned(),
        host,
    }
}
