//! What is in a profile: whose, how many calls of how many stacks.

use std::collections::BTreeMap;
use std::io;

use serde::Serialize;
use xray_trace::model::ThreadId;
use xray_trace::source::OpenedProfile;

use super::{Column, Look, Table, Tone, text, units};

/// What is in a profile.
#[derive(Debug, Serialize)]
pub(crate) struct ProfileInfo {
    file: String,
    format: &'static str,
    bytes: u64,
    /// When it was written, in nanoseconds since the Unix epoch; absent if the file does not say.
    written_wall_ns: Option<u64>,
    executable: Option<String>,
    functions: usize,
    stacks: usize,
    calls: u64,
    self_ticks: u64,
    threads: Vec<ThreadInfo>,
}

#[derive(Debug, Default, Serialize)]
struct ThreadInfo {
    /// Absent if the file does not say.
    pid: Option<u32>,
    tid: u32,
    stacks: usize,
    calls: u64,
    self_ticks: u64,
}

// === impl ProfileInfo ===

impl ProfileInfo {
    pub(crate) fn new(file: &str, bytes: u64, opened: &OpenedProfile) -> Self {
        let (tables, stacks) = (opened.profile.tables(), opened.profile.stacks());
        let mut threads = BTreeMap::<ThreadId, ThreadInfo>::new();
        for stack in stacks {
            let thread = threads.entry(stack.thread).or_default();
            thread.stacks += usize::from(stack.calls > 0);
            thread.calls = thread.calls.saturating_add(stack.calls);
            thread.self_ticks = thread.self_ticks.saturating_add(stack.self_ns);
        }
        for (id, info) in &mut threads {
            let thread = tables.thread(*id);
            let process = thread.and_then(|thread| tables.process(thread.process));
            info.pid = process.map(|process| process.pid).filter(|pid| *pid != 0);
            info.tid = thread.map_or(id.0, |thread| thread.tid);
        }
        let sum =
            |of: fn(&ThreadInfo) -> u64| threads.values().map(of).fold(0, u64::saturating_add);
        let (calls, self_ticks) = (sum(|info| info.calls), sum(|info| info.self_ticks));
        let executable = tables.processes().first();
        let executable = executable.map(|process| process.executable.clone());
        Self {
            file: file.to_owned(),
            format: "profile",
            bytes,
            written_wall_ns: opened.written_wall_ns,
            executable: executable.filter(|path| !path.is_empty()),
            functions: tables.functions().len(),
            stacks: threads.values().map(|info| info.stacks).sum(),
            calls,
            self_ticks,
            threads: threads.into_values().collect(),
        }
    }

    /// For people.
    pub(crate) fn render(&self, out: &mut dyn io::Write, look: Look) -> io::Result<()> {
        let program = self.executable.as_deref().unwrap_or("a program");
        let program = text::printable(program.rsplit('/').next().unwrap_or(program));
        writeln!(
            out,
            "{}: {} of {} by {} in {}, {}",
            look.paint(Tone::Heading, &program),
            units::counted(self.calls, "call"),
            units::counted(self.functions as u64, "function"),
            units::counted(self.threads.len() as u64, "thread"),
            units::counted(self.stacks as u64, "stack"),
            units::counted(self.self_ticks, "tick"),
        )?;
        writeln!(out, "{}, {}", self.format, units::bytes(self.bytes))?;
        let mut table = Table::new([
            Column::right("PID"),
            Column::right("TID"),
            Column::right("STACKS"),
            Column::right("CALLS"),
            Column::right("TICKS"),
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
                units::count(thread.self_ticks).into(),
            ]);
        }
        table.render(out, look)
    }
}
