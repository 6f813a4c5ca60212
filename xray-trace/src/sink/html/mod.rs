//! A report in one page of HTML. The page is complete in itself: it uses no network and no other
//! file.
//!
//! ```text
//!  trace ─► table of functions ─┐
//!        ─► stacks ─────────────┼─► document: a head in JSON, columns of numbers ─► gzip ─► base64
//!        ─► timeline ───────────┘                                                             │
//!                                        page/: markup, style, scripts ──────────────► page ◄─┘
//! ```
//!
//! Names come from untrusted programs. Only the document contains them, and base64 contains no
//! markup; the scripts insert them into the page as text. A content policy forbids the page
//! everything but its own content.
//!
//! *Size.* Every part has a limit ([`limits`]), so that a page has at most 20 MB for any trace. The
//! document has less than 14 MB before compression, which base64 makes 19. The page counts and
//! shows the parts that are left out.
//!
//! *Notes.* Facts about a trace are a list of [`PageNote`]s. The caller adds them
//! ([`Page::add_note`]). The page lists them, and draws notes with a time of their own above the
//! timeline. A tracer's decisions belong there, such as the time for which a function was off.

mod document;
mod flame;
mod functions;
mod limits;
mod lines;
mod names;
mod off_cpu;
mod threads;

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::analysis::{
    self, Filter, GroupBy, Notes, PagePass, Side, StackRoots, StackTrie, Timeline,
};
use crate::model::{Calibration, Profile, Ticks, Trace};

use document::Document;
use functions::Functions;
use names::Names;
use threads::Threads;

const TEMPLATE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
/// The scripts in the order of their execution.
const SCRIPTS: [&str; 12] = [
    include_str!("page/data.js"),
    include_str!("page/format.js"),
    include_str!("page/colour.js"),
    include_str!("page/surface.js"),
    include_str!("page/flame.js"),
    include_str!("page/offcpu.js"),
    include_str!("page/lanes.js"),
    include_str!("page/sheet.js"),
    include_str!("page/timeline.js"),
    include_str!("page/table.js"),
    include_str!("page/notes.js"),
    include_str!("page/main.js"),
];

/// A report that can be written as a page.
#[derive(Debug)]
pub struct Page {
    document: Document,
    notes: Notes,
    page_notes: Vec<PageNote>,
    functions: Functions,
    threads: Threads,
    filter: Filter,
    origin_ns: u64,
}

/// A fact about a trace, for the user.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageNote {
    /// The severity.
    pub tone: NoteTone,
    /// The text, a sentence.
    pub text: String,
    /// The time of the note, if it has one, in nanoseconds after the trace's first event. The user
    /// can look such a note up in the timeline.
    pub span_ns: Option<(u64, u64)>,
}

/// The severity of a note.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoteTone {
    /// Data is missing.
    Bad,
    /// Data differs from its appearance.
    Warning,
    /// Information.
    Plain,
}

/// The place of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// In a file.
    Alone,
    /// On a server that has the trace, and answers for windows of time.
    Served,
}

// === impl Page ===

impl Page {
    /// The report of the part of a trace that `filter` selects. `file` is the name of the trace.
    #[must_use]
    pub fn of_trace(trace: &Trace, filter: &Filter, file: &str, program: &str) -> Self {
        let blocks = trace.blocks().iter();
        let first = blocks.clone().map(|block| block.first).min();
        let last = blocks.map(|block| block.last).max();
        let at = |ticks: Option<Ticks>| ticks.map_or(0, |at| trace.clock().monotonic_ns(at));
        let (origin_ns, last_ns) = (at(first), at(last));
        let shown = |ticks: Ticks| trace.clock().monotonic_ns(ticks).saturating_sub(origin_ns);
        let span = last_ns.saturating_sub(origin_ns);

        let most_room = limits::timeline(trace, 0);
        let PagePass {
            account,
            spreads,
            stacks,
            mut timeline,
        } = PagePass::new(trace, filter, origin_ns, most_room);
        let mut document = Document::default();
        let mut names = Names::default();
        let notes = account.notes;
        let mut functions = Functions::new(account.rows, spreads, trace, &mut names);
        functions.write(&mut document);
        flame::write(&stacks, &mut names, &mut document);
        let room = limits::timeline(trace, document.len() + names.len());
        if room != most_room {
            // The other parts take so much of the page that fewer calls fit. How many is known only
            // after a pass, and the calls of a timeline depend on it, so this needs another pass.
            timeline = Timeline::new(trace, filter, origin_ns, room);
        }
        let threads = Threads::new(&timeline, trace);
        functions.write_longest(&timeline.longest, &threads, origin_ns, &mut document);
        lines::write(&timeline, &threads, &functions, origin_ns, &mut document);
        document.set("runs", json!(trace.has_runs()));
        let totals = trace.totals();
        document.set("kind", json!("trace"));
        document.set("events", json!(totals.calls));
        document.set("lost", json!(totals.lost));
        let unplaced = trace.coverage().losses.iter().map(|(_, events)| *events);
        document.set("lostUnplaced", json!(unplaced.fold(0, u64::saturating_add)));
        document.set("span", json!(span));
        let since = filter.since.map_or(0, shown).min(span);
        document.set("since", json!(since));
        let until = filter.until.map_or(span, shown).clamp(since, span);
        document.set("until", json!(until));
        document.set(
            "started",
            json!(first.map(|first| trace.clock().wall_ns(first))),
        );
        document.set("threads", threads.head(&timeline));
        document.set("otherThreads", json!(timeline.other_threads));
        document.set("allThreads", json!(trace.blocks_by_thread().len()));
        let mut page = Self {
            document,
            notes,
            page_notes: Vec::new(),
            functions,
            threads,
            filter: filter.clone(),
            origin_ns,
        };
        page.finish(trace, &names, filter, file, program);
        page
    }

    /// The report of a profile, which has no timeline.
    #[must_use]
    pub fn of_profile(profile: &Profile, filter: &Filter, file: &str, program: &str) -> Self {
        let tables = profile.tables();
        let account = analysis::account_profile(profile, filter, GroupBy::Function);
        let mut spreads = analysis::profile_spreads(profile, filter);
        let spreads = account.rows.iter().map(|row| {
            let function = row.subject.function();
            let spread = function.and_then(|function| spreads.remove(&function));
            spread.unwrap_or_default()
        });
        let spreads = spreads.collect();
        let mut stacks = StackTrie::default();
        stacks.add_profile(profile, filter, StackRoots::Together, Side::Before);

        let mut document = Document::default();
        let mut names = Names::default();
        let notes = account.notes;
        let mut functions = Functions::new(account.rows, spreads, tables, &mut names);
        functions.write(&mut document);
        flame::write(&stacks, &mut names, &mut document);
        let mut threads: Vec<_> = profile.stacks().iter().map(|stack| stack.thread).collect();
        threads.sort_unstable();
        threads.dedup();
        document.set("kind", json!("profile"));
        document.set("lost", json!(profile.missing().lost));
        document.set("allThreads", json!(threads.len()));
        let mut page = Self {
            document,
            notes,
            page_notes: Vec::new(),
            functions,
            threads: Threads::default(),
            filter: filter.clone(),
            origin_ns: 0,
        };
        page.finish(tables, &names, filter, file, program);
        page
    }

    fn finish(
        &mut self,
        tables: &Trace,
        names: &Names,
        filter: &Filter,
        file: &str,
        program: &str,
    ) {
        let calibrated = tables.clock().calibration() == Calibration::Measured;
        let Filter {
            threads,
            functions,
            since,
            until,
            // The page shows no user events.
            user_events: _,
        } = filter;
        let part = threads.is_some() || functions.is_some() || since.is_some() || until.is_some();
        let document = &mut self.document;
        document.set("version", json!(1));
        document.set("calibrated", json!(calibrated));
        document.set("file", json!(names::cut(file, limits::PATH)));
        document.set("program", json!(names::cut(program, limits::PATH)));
        document.set("part", json!(part));
        document.set("names", json!(names.all()));
        document.set("namesLeftOut", json!(names.left_out()));
    }

    /// The events that are not ordinary calls.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// Adds a note. Notes beyond 500 are dropped.
    pub fn add_note(&mut self, note: PageNote) {
        if self.page_notes.len() < limits::NOTES {
            self.page_notes.push(note);
        }
    }

    /// The timeline of a part of the page's trace, in the format of the page's own timeline, but
    /// with all of its limits for that part. Times are in nanoseconds after the trace's first
    /// event.
    #[must_use]
    pub fn window(&self, trace: &Trace, since_ns: u64, until_ns: u64) -> Vec<u8> {
        let tick = |ns: u64| Filter::tick_after(trace, ns);
        let since = self.filter.since.max(Some(tick(since_ns)));
        let until = self.filter.until.into_iter().chain([tick(until_ns)]).min();
        let filter = Filter {
            threads: Some(self.threads.ids().collect()),
            functions: self.filter.functions.clone(),
            since,
            until,
            ..Filter::default()
        };
        let timeline = match (since, until) {
            (Some(since), Some(until)) if since >= until => Timeline::default(),
            _ => Timeline::new(trace, &filter, self.origin_ns, limits::WINDOW),
        };
        let mut document = Document::default();
        lines::write(
            &timeline,
            &self.threads,
            &self.functions,
            self.origin_ns,
            &mut document,
        );
        document.set("runs", json!(trace.has_runs()));
        document.set("threads", self.threads.head(&timeline));
        document.set("since", json!(since_ns));
        document.set("until", json!(until_ns));
        document.bytes()
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// The errors of `output`.
    pub fn write(&self, standing: Standing, output: &mut dyn Write) -> io::Result<()> {
        let mut rest = TEMPLATE;
        while let Some((before, marked)) = rest.split_once("{{") {
            output.write_all(before.as_bytes())?;
            let (what, after) = marked.split_once("}}").unwrap_or((marked, ""));
            match what {
                "style" => output.write_all(STYLE.as_bytes())?,
                "scripts" => SCRIPTS
                    .iter()
                    .try_for_each(|script| output.write_all(script.as_bytes()))?,
                "connect" => output.write_all(match standing {
                    Standing::Alone => b"'none'",
                    Standing::Served => b"'self'",
                })?,
                "data" => self.write_document(standing, output)?,
                other => output.write_all(other.as_bytes())?,
            }
            rest = after;
        }
        output.write_all(rest.as_bytes())
    }

    fn write_document(&self, standing: Standing, output: &mut dyn Write) -> io::Result<()> {
        let mut document = self.document.clone();
        let notes = self.page_notes.iter().map(|note| {
            let PageNote {
                tone,
                text,
                span_ns,
            } = note;
            let tone = match tone {
                NoteTone::Bad => "bad",
                NoteTone::Warning => "warning",
                NoteTone::Plain => "plain",
            };
            json!({ "tone": tone, "text": names::cut(text, limits::NOTE), "span": span_ns })
        });
        document.set("notes", notes.collect());
        document.set("served", json!(standing == Standing::Served));
        let encoder = EncoderWriter::new(output, &STANDARD);
        let mut packed = GzEncoder::new(encoder, Compression::default());
        packed.write_all(&document.bytes())?;
        packed.finish()?.finish()?;
        Ok(())
    }
}
