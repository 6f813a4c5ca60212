//! The interface of formats that are one file.

use std::io::{self, Write};

use super::report::Report;
use crate::event_format::EventOptions;
use crate::model::{Profile, Trace};

/// A format of one file.
pub trait Sink: std::fmt::Debug + Sync {
    /// The name by which a user asks for the format.
    fn name(&self) -> &'static str;

    /// The ends of file names that mean the format, without the dot before.
    fn extensions(&self) -> &'static [&'static str];

    /// The format's use, in at most a line.
    fn about(&self) -> &'static str;

    /// Whether a terminal can show the file.
    fn is_text(&self) -> bool {
        true
    }

    /// Writes the trace, in many small writes. The caller puts a `BufWriter` around a file, and
    /// flushes it afterwards.
    ///
    /// # Errors
    ///
    /// The errors of `output`. It is no error if the format cannot hold something; the report
    /// counts it.
    fn write(&self, trace: &Trace, output: &mut dyn Write) -> io::Result<Report>;

    /// The same format for profiles, which have sums but no events; `None` if the format needs
    /// events.
    fn of_profile(&self) -> Option<&dyn ProfileSink> {
        None
    }

    /// The same format with a selection of user events and the fields in their data; `None` if the
    /// format has no place for fields.
    fn of_events(&self) -> Option<&dyn EventSink> {
        None
    }

    /// The same format with the records thread by thread; `None` unless the format has the records
    /// of all threads in order of time.
    fn by_thread(&self) -> Option<&'static dyn Sink> {
        None
    }
}

/// A format of one file that has a place for the fields in the data of user events.
pub trait EventSink: std::fmt::Debug + Sync {
    /// Writes the trace with the selected user events, in many small writes. Events of the
    /// described types have their fields.
    ///
    /// # Errors
    ///
    /// The errors of `output`. It is no error if the format cannot hold something; the report
    /// counts it. Events that are not selected do not count.
    fn write(
        &self,
        trace: &Trace,
        options: &EventOptions,
        output: &mut dyn Write,
    ) -> io::Result<Report>;
}

/// A format of one file that has a place for sums of calls.
pub trait ProfileSink: std::fmt::Debug + Sync {
    /// Writes the profile, in many small writes.
    ///
    /// # Errors
    ///
    /// The errors of `output`. It is no error if the format cannot hold something; the report
    /// counts it.
    fn write(&self, profile: &Profile, output: &mut dyn Write) -> io::Result<Report>;
}
