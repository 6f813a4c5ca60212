//! A long log is looked through by several processors, each with a part of its buffers.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::os::unix::fs::FileExt as _;
use std::thread;

use super::super::OpenError;
use super::survey::Survey;
use crate::llvm::fdr::{Events, Layout, Record};
use crate::llvm::{HEADER_LEN, Mode};

/// It is not worth beginning another part for fewer bytes.
const WORTHWHILE: u64 = 4 << 20;
/// Parts at most.
const MOST: u64 = 4;
/// A log whose buffers have fewer bytes on average has one part: finding out where they begin would take longer than it spares.
const SHORT_BUFFER: u64 = 1 << 10;
/// Length of a record that says how long a buffer is.
const EXTENTS_LEN: usize = 16;

/// Bytes of a file, from one place to another.
struct Stretch<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

/// Looks through a log.
///
/// # Errors
///
/// Those of [`Events::next`].
pub(super) fn survey(file: &File, mode: Mode) -> Result<Survey, OpenError> {
    let len = file.metadata()?.len();
    let whole = || Events::new(Stretch::new(file, 0, len), mode);
    let events = whole()?;
    let begins = match mode {
        Mode::Strict => begins(file, len, events.layout())?,
        // What is left out is told in the order of the file.
        Mode::Salvage => Vec::new(),
    };
    if begins.is_empty() {
        return Survey::of(events);
    }
    let header = *events.header();
    let part = |begin: u64, end: u64| -> Result<Survey, OpenError> {
        let bytes = Stretch::new(file, begin, end);
        Survey::of(Events::resume(bytes, header, begin, mode)?)
    };
    let surveys: Result<Vec<_>, OpenError> = thread::scope(|scope| {
        let ends = begins.iter().skip(1).chain([&len]);
        let others: Vec<_> = begins
            .iter()
            .zip(ends)
            .map(|(&begin, &end)| scope.spawn(move || part(begin, end)))
            .collect();
        let first = begins.first().map_or(len, |begin| *begin);
        let first = Events::new(Stretch::new(file, 0, first), mode)
            .map_err(OpenError::from)
            .and_then(Survey::of);
        let others = others.into_iter().map(|other| {
            let joined = other.join();
            joined.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        });
        std::iter::once(first).chain(others).collect()
    });
    match surveys.map(Vec::into_iter) {
        Ok(mut surveys) => {
            let first = surveys.next();
            let mut all = first.ok_or_else(|| io::Error::other("a log of no part"))?;
            surveys.for_each(|next| all.add(next));
            Ok(all)
        }
        // The true reason is that of a reader that comes from the front.
        Err(_) => Survey::of(whole()?),
    }
}

/// Where the parts behind the first one begin, at buffers, which tell their length. Nothing, if some buffer does not.
fn begins(file: &File, len: u64, layout: Layout) -> io::Result<Vec<u64>> {
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    let parts = processors.min(MOST).min(len / WORTHWHILE);
    let mut begins = Vec::new();
    let mut at = HEADER_LEN as u64;
    for _ in 0..len / SHORT_BUFFER {
        let part = begins.len() as u64 + 1;
        if part >= parts {
            break;
        }
        let mut bytes = [0; EXTENTS_LEN];
        match file.read_exact_at(&mut bytes, at) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(Vec::new()),
            Err(error) => return Err(error),
        }
        let Some((Record::BufferExtents { size }, _)) = layout.record(&bytes) else {
            return Ok(Vec::new());
        };
        if at >= len / parts * part {
            begins.push(at);
        }
        at = at.saturating_add(EXTENTS_LEN as u64).saturating_add(size);
    }
    Ok(begins)
}

// === impl Stretch ===

impl<'a> Stretch<'a> {
    fn new(file: &'a File, at: u64, end: u64) -> Self {
        Self { file, at, end }
    }
}

impl Read for Stretch<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let left = usize::try_from(self.end.saturating_sub(self.at)).unwrap_or(usize::MAX);
        let len = left.min(into.len());
        let read = self.file.read_at(&mut into[..len], self.at)?;
        self.at += read as u64;
        Ok(read)
    }
}
