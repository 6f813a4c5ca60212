//! The contents of a profile: its program, its stacks and the number of their calls.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use serde::Serialize;
use xray_trace::analysis::Filter;
use xray_trace::llvm::Format;
use xray_trace::model::ThreadId;
use xray_trace::source::OpenedProfile;

use super::unrecorded::Unrecorded;
use super::{Column, Look, Table, Tone, text, units};

/// The contents of a profile.
#[derive(Debug, Serialize)]
pub(crate) struct ProfileInfo {
    file: String,
    format: &'static str,
    bytes: u64,
    /// Time of writing, in nanoseconds since the Unix epoch; absent if the file does not have it.
    written_wall_ns: Option<u64>,
    /// The program of the first process.
    executable: Option<String>,
    /// The number of other programs.
    #[serde(skip)]
    more_programs: usize,
    functions: usize,
    stacks: usize,
    calls: u64,
    /// Lost events; absent for a profile of LLVM's, which does not have their number.
    lost: Option<u64>,
    /// Only ticks are known of a profile of LLVM's, because the rate of its counter is not. Our
    /// profiles have nanoseconds.
    self_ticks: Option<u64>,
    self_ns: Option<u64>,
    /// Calls that were left unrecorded on purpose.
    #[serde(skip_serializing_if = "Option::is_none")]
    unrecorded: Option<Unrecorded>,
    threads: Vec<ThreadInfo>,
}

#[derive(Debug, Default, Serialize)]
struct ThreadInfo {
    /// Absent if the file does not have it.
    pid: Option<u32>,
    tid: u32,
    stacks: usize,
    calls: u64,
    self_ticks: Option<u64>,
    self_ns: Option<u64>,
}

// === impl ProfileInfo ===

impl ProfileInfo {
    pub(crate) fn new(file: &str, bytes: u64, opened: &OpenedProfile) -> Self {
        let (tables, stacks) = (opened.profile.tables(), opened.profile.stacks());
        let ours = opened.format == Format::Xtrace;
        let mut threads = BTreeMap::<ThreadId, ThreadInfo>::new();
        for stack in stacks {
            let thread = threads.entry(stack.thread).or_default();
            thread.stacks += usize::from(stack.calls > 0);
            thread.calls = thread.calls.saturating_add(stack.calls);
            let own = match ours {
                true => &mut thread.self_ns,
                false => &mut thread.self_ticks,
            };
            *own = Some(own.unwrap_or(0).saturating_add(stack.self_ns));
        }
        for (id, info) in &mut threads {
            let thread = tables.thread(*id);
            let process = thread.and_then(|thread| tables.process(thread.process));
            info.pid = process.map(|process| process.pid).filter(|pid| *pid != 0);
            info.tid = thread.map_or(id.0, |thread| thread.tid);
        }
        let sum =
            |of: fn(&ThreadInfo) -> u64| threads.values().map(of).fold(0, u64::saturating_add);
        let calls = sum(|info| info.calls);
        let own = sum(|info| info.self_ns.or(info.self_ticks).unwrap_or(0));
        let programs = tables.processes().iter();
        let programs: BTreeSet<_> = programs.map(|process| &process.executable).collect();
        let executable = tables.processes().first();
        let executable = executable.map(|process| process.executable.clone());
        Self {
            file: file.to_owned(),
            format: "profile",
            bytes,
            written_wall_ns: opened.written_wall_ns,
            executable: executable.filter(|path| !path.is_empty()),
            more_programs: programs.len().saturating_sub(1),
            functions: tables.functions().len(),
            stacks: threads.values().map(|info| info.stacks).sum(),
            calls,
            lost: ours.then(|| opened.profile.missing().lost),
            self_ticks: (!ours).then_some(own),
            self_ns: ours.then_some(own),
            unrecorded: Unrecorded::new(tables, &Filter::default()),
            threads: threads.into_values().collect(),
        }
    }

    /// Writes the information as text.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let program = self.executable.as_deref().unwrap_or("a program");
        let mut program = text::printable(program.rsplit('/').next().unwrap_or(program));
        if self.more_programs > 0 {
            let more = units::counted(self.more_programs as u64, "more program");
            program = format!("{program} and {more}");
        }
        writeln!(
            out,
            "{}: {} of {} by {} in {}, {}",
            look.paint(Tone::Heading, &program),
            units::counted(self.calls, "call"),
            units::counted(self.functions as u64, "function"),
            units::counted(self.threads.len() as u64, "thread"),
            units::counted(self.stacks as u64, "stack"),
            own(self.self_ns, self.self_ticks),
        )?;
        if let Some(lost) = self.lost.filter(|lost| *lost > 0) {
            writeln!(out, "{} lost", units::counted(lost, "event"))?;
        }
        let lines = self.unrecorded.iter().flat_map(Unrecorded::lines);
        for (tone, line) in lines {
            writeln!(out, "{}", look.paint(tone, &line))?;
        }
        writeln!(out, "{}, {}", self.format, units::bytes(self.bytes))?;
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("TID"),
            Column::right("STACKS"),
            Column::right("CALLS"),
            Column::right(if self.self_ns.is_some() {
                "SELF"
            } else {
                "TICKS"
            }),
        ]);
        for thread in &self.threads {
            let pid = thread
                .pid
                .map_or_else(|| "-".to_owned(), |pid| pid.to_string());
            table.push([
                pid.into(),
                thread.tid.to_string().into(),
                units::count(thread.stacks as u64).into(),
                units::count(thread.calls).into(),
                match (thread.self_ns, thread.self_ticks) {
                    (None, ticks) => units::count(ticks.unwrap_or(0)).into(),
                    (Some(ns), _) => units::time(ns).into(),
                },
            ]);
        }
        table.render(out, look)?;
        match &self.unrecorded {
            Some(unrecorded) => unrecorded.render_more(None, out, look),
            None => Ok(()),
        }
    }
}

fn own(ns: Option<u64>, ticks: Option<u64>) -> String {
    match ns {
        Some(ns) => units::time(ns),
        None => units::counted(ticks.unwrap_or(0), "tick"),
    }
}
