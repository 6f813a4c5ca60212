//! The report as a page, for `report --html` and `view`. `xray_trace` makes the page. This module
//! adds its title and the notes on the file.

use std::path::Path;

use xray_trace::analysis::{Filter, Notes};
use xray_trace::sink::{NoteTone, Page, PageNote};
use xray_trace::source::{Opened, OpenedProfile};

use crate::log::Log;
use crate::output::Tone;
use crate::output::trace_summary::TraceSummary;
use crate::output::unrecorded::Unrecorded;

/// Makes the page of a file. The page also has the file's own notes, each with its count.
pub(crate) fn of(log: &Log, filter: &Filter, path: &Path) -> Page {
    let file = path.display().to_string();
    let name = path
        .file_name()
        .map_or(file.clone(), |name| name.display().to_string());
    let tables = log.tables();
    let programs = TraceSummary::new(&file, tables, Notes::default()).programs();
    let mut page = match log {
        Log::Trace(opened) => Page::of_trace(&opened.trace, filter, &name, &programs),
        Log::Profile(opened) => Page::of_profile(&opened.profile, filter, &name, &programs),
    };
    let summary = TraceSummary::new(&file, tables, page.notes());
    let unrecorded = summary.unrecorded();
    let unrecorded = unrecorded.map_or_else(Vec::new, Unrecorded::lines_with_names);
    for (tone, text) in unrecorded.into_iter().chain(summary.toned_notes()) {
        page.add_note(PageNote {
            tone: match tone {
                Tone::Bad => NoteTone::Bad,
                Tone::Warning => NoteTone::Warning,
                _ => NoteTone::Plain,
            },
            text,
            span_ns: None,
        });
    }
    let (Log::Trace(Opened { notes, .. }) | Log::Profile(OpenedProfile { notes, .. })) = log;
    for (what, count) in notes {
        page.add_note(PageNote {
            tone: NoteTone::Warning,
            text: match count {
                1 => what.clone(),
                count => format!("{what}: {count}"),
            },
            span_ns: None,
        });
    }
    page
}
