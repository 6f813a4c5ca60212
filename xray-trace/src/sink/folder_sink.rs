//! The interface of formats that are several files in a directory.

use std::io::{self, Write};

use super::report::Report;
use crate::event_format::EventOptions;
use crate::model::Trace;

/// A format of several files in a directory of their own.
pub trait FolderSink: std::fmt::Debug + Sync {
    /// The name by which a user asks for the format.
    fn name(&self) -> &'static str;

    /// The ends of directory names that mean the format, without the dot before.
    fn extensions(&self) -> &'static [&'static str];

    /// The format's use, in at most a line.
    fn about(&self) -> &'static str;

    /// Writes the trace.
    ///
    /// # Errors
    ///
    /// The errors of `folder`.
    fn write(&self, trace: &Trace, folder: &mut dyn Folder) -> io::Result<Report>;

    /// The same format with a selection of user events and the fields in their data; `None` if the
    /// format has no place for fields.
    fn of_events(&self) -> Option<&dyn EventFolderSink> {
        None
    }
}

/// A format of several files that has a place for the fields in the data of user events.
pub trait EventFolderSink: std::fmt::Debug + Sync {
    /// Writes the trace with the selected user events. Events of the described types have their
    /// fields.
    ///
    /// # Errors
    ///
    /// The errors of `folder`.
    fn write(
        &self,
        trace: &Trace,
        options: &EventOptions,
        folder: &mut dyn Folder,
    ) -> io::Result<Report>;
}

/// The destination of a format of several files. The files are written one after another.
pub trait Folder {
    /// Ends the current file and begins one of that name.
    ///
    /// # Errors
    ///
    /// If the former file cannot be finished, or the new one cannot be made.
    fn begin(&mut self, name: &str) -> io::Result<()>;

    /// The current file. Before the first `begin`, every write fails.
    fn current(&mut self) -> &mut (dyn Write + Send);
}
