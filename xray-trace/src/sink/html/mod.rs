//! A report in one page of HTML, which needs nothing else: no network, no other file.
//!
//! ```text
//!  trace ─► table of functions ─┐
//!        ─► stacks ─────────────┼─► document: a head in JSON, columns of numbers ─► gzip ─► base64 ─┐
//!        ─► timeline ───────────┘                                                                   ├─► page
//!                                            page/: markup, style, scripts ─────────────────────────┘
//! ```
//!
//! Names come from strangers. They stand in the document alone, and of base64 nothing can be taken for markup; the scripts put them into the
//! page as text. A policy in the page forbids it everything but what is in it.
//!
//! *Size.* Everything has a limit ([`limits`]), so that a page has no more than 20 MB whatever the trace: before compression the document has less than
//! 14 MB, which base64 makes 19. What was left out is counted, and the page says so.
//!
//! *Notes.* What there is to say of a trace is a list of [`PageNote`]s, which whoever makes the page adds ([`Page::add_note`]): the page lists them, and
//! draws those that are of a time of their own above the timeline. A tracer's decisions, such as for which time a function was off, belong there.

mod document;
mod flame;
mod functions;
mod limits;
mod lines;
mod names;
mod threads;

use std::io::{self, Write};

use base64::engine::general_purpose::STANDARD;
use base64::write::EncoderWriter;
use flate2::Compression;
use flate2::write::GzEncoder;
use serde_json::json;

use crate::analysis::{self, Filter, GroupBy, Notes, Siblings, Side, StackRoots, Stacks, Timeline};
use crate::model::{Calibration, Profile, Ticks, Trace};

use document::Document;
use functions::Functions;
use names::Names;
use threads::Threads;

const TEMPLATE: &str = include_str!("page/index.html");
const STYLE: &str = include_str!("page/style.css");
/// In this order.
const SCRIPTS: [&str; 11] = [
    include_str!("page/data.js"),
    include_str!("page/format.js"),
    include_str!("page/colour.js"),
    include_str!("page/surface.js"),
    include_str!("page/flame.js"),
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
    said: Vec<PageNote>,
    functions: Functions,
    threads: Threads,
    filter: Filter,
    origin_ns: u64,
}

/// Something to say about a trace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PageNote {
    /// How bad it is.
    pub tone: NoteTone,
    /// What it is, in a sentence.
    pub text: String,
    /// Of what time it is, if it has one: in nanoseconds after the trace's first event. Such a note can be looked up in the timeline.
    pub span_ns: Option<(u64, u64)>,
}

/// How bad a note is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum NoteTone {
    /// Something is missing.
    Bad,
    /// Something is not as it looks.
    Warning,
    /// Good to know.
    Plain,
}

/// Where a page is to be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Standing {
    /// In a file of its own.
    Alone,
    /// On a server that has the trace, and answers for windows of time.
    Served,
}

// === impl Page ===

impl Page {
    /// The report of what `filter` wants of a trace. `file` is what it is called.
    #[must_use]
    pub fn of_trace(trace: &Trace, filter: &Filter, file: &str, program: &str) -> Self {
        let blocks = trace.blocks().iter();
        let first = blocks.clone().map(|block| block.first).min();
        let last = blocks.map(|block| block.last).max();
        let at = |ticks: Option<Ticks>| ticks.map_or(0, |at| trace.clock().monotonic_ns(at));
        let (origin_ns, last_ns) = (at(first), at(last));
        let shown = |ticks: Ticks| trace.clock().monotonic_ns(ticks).saturating_sub(origin_ns);
        let span = last_ns.saturating_sub(origin_ns);

        let (account, spreads) = analysis::account_with_spreads(trace, filter);
        let mut stacks = Stacks::default();
        stacks.add(
            trace,
            filter,
            Siblings::Closed,
            StackRoots::Together,
            Side::Before,
        );
        let mut document = Document::default();
        let mut names = Names::default();
        let notes = account.notes;
        let mut functions = Functions::new(account.rows, spreads, trace, &mut names);
        functions.write(&mut document);
        flame::write(&stacks, &mut names, &mut document);
        let room = limits::timeline(document.len() + names.len());
        let timeline = Timeline::new(trace, filter, origin_ns, room);
        let threads = Threads::new(&timeline, trace);
        functions.write_longest(&timeline.longest, &threads, origin_ns, &mut document);
        lines::write(&timeline, &threads, &functions, origin_ns, &mut document);
        let totals = trace.totals();
        document.set("kind", json!("trace"));
        document.set("events", json!(totals.calls));
        document.set("lost", json!(totals.lost));
        let unplaced = trace.losses().iter().map(|(_, events)| *events);
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
            said: Vec::new(),
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
        let mut stacks = Stacks::default();
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
            said: Vec::new(),
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

    /// What was met that is not an ordinary call.
    #[must_use]
    pub fn notes(&self) -> Notes {
        self.notes
    }

    /// Has the page say something.
    pub fn add_note(&mut self, note: PageNote) {
        if self.said.len() < limits::NOTES {
            self.said.push(note);
        }
    }

    /// The timeline of a part of the trace that the page is of, in the same words as that of the page, but with all of its room for that
    /// part. Times are in nanoseconds after the trace's first event.
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
        document.set("threads", self.threads.head(&timeline));
        document.set("since", json!(since_ns));
        document.set("until", json!(until_ns));
        document.bytes()
    }

    /// Writes the page.
    ///
    /// # Errors
    ///
    /// What `output` reports.
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
        let said = self.said.iter().map(|note| {
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
        document.set("notes", said.collect());
        document.set("served", json!(standing == Standing::Served));
        let encoder = EncoderWriter::new(output, &STANDARD);
        let mut packed = GzEncoder::new(encoder, Compression::default());
        packed.write_all(&document.bytes())?;
        packed.finish()?.finish()?;
        Ok(())
    }
}
