//! Surveys a long log on several processors. Each takes a part of its buffers.

use std::fs::File;
use std::io::{self, Read};
use std::num::NonZero;
use std::os::unix::fs::FileExt as _;
use std::thread;

use super::super::OpenError;
use super::survey::Survey;
use crate::llvm::fdr::{Events, Layout, Record};
use crate::llvm::{HEADER_LEN, Mode};

/// The bytes that justify another part.
const WORTHWHILE: u64 = 4 << 20;
/// The most parts.
const MOST: u64 = 4;
/// The length of the shortest buffers for which the search for begins of parts is fast enough. With
/// shorter ones the search would take longer than it saves, so it stops, and the last part is
/// longer.
const SHORT_BUFFER: u64 = 1 << 10;
/// The length of a BufferExtents record.
const EXTENTS_LEN: usize = 16;

/// A range of bytes of a file.
struct Stretch<'a> {
    file: &'a File,
    at: u64,
    end: u64,
}

/// Surveys a log.
///
/// # Errors
///
/// The errors of [`Events::next`].
pub(super) fn survey(file: &File, mode: Mode) -> Result<Survey, OpenError> {
    let len = file.metadata()?.len();
    let processors = thread::available_parallelism().map_or(1, NonZero::get) as u64;
    survey_in(processors.min(MOST).min(len / WORTHWHILE), file, mode)
}

/// Surveys a log in at most this number of parts.
fn survey_in(parts: u64, file: &File, mode: Mode) -> Result<Survey, OpenError> {
    let len = file.metadata()?.len();
    let whole = || Events::new(Stretch::new(file, 0, len), mode);
    let events = whole()?;
    let begins = match mode {
        Mode::Strict => begins(parts, file, len, events.layout())?,
        // Skipped parts are reported in the order of the file.
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
        // A reader that begins at the front reports the true reason.
        Err(_) => Survey::of(whole()?),
    }
}

/// The begins of the parts after the first one, each at a buffer. The search follows the lengths of
/// the buffers. Empty if a buffer has no length.
fn begins(parts: u64, file: &File, len: u64, layout: Layout) -> io::Result<Vec<u64>> {
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

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::super::super::Options;
    use super::super::trace_of;
    use super::*;
    use crate::llvm::fdr::{FunctionKind, Writer};
    use crate::llvm::header::{Header, LogType};
    use crate::model::{Event, EventBody, ThreadId};

    /// The length of a buffer, without its extents.
    const BUFFER_LEN: u64 = 4 * 16 + 200 * 8 + 16;

    /// A log in which threads fill several buffers in a row, so that these join into blocks.
    fn log() -> Vec<u8> {
        let header = Header::new(LogType::Fdr, 5, 3_000_000_000);
        let mut writer = Writer::new(Vec::new(), header).unwrap();
        for number in 0..60_u32 {
            let tid = (number / 5 % 3).cast_signed();
            let first = [
                Record::BufferExtents { size: BUFFER_LEN },
                Record::NewBuffer { tid },
                Record::WallTime {
                    seconds: 5,
                    micros: 7,
                },
                Record::Pid { pid: 1 },
                Record::NewCpu {
                    cpu: 2,
                    tsc: u64::from(number / 2) * 10_000,
                },
            ];
            let call = |kind, at: u32| Record::Function {
                kind,
                function: (number + at) % 70 + 1,
                delta: at,
            };
            let calls = (0..100).flat_map(|at| {
                [FunctionKind::Enter, FunctionKind::Exit].map(|kind| call(kind, at))
            });
            let last = Record::CustomEventDelta {
                delta: 5,
                data: &b""[..],
            };
            for record in first.into_iter().chain(calls).chain([last]) {
                writer.record(&record).unwrap();
            }
        }
        writer.into_inner()
    }

    fn file(bytes: &[u8]) -> File {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        file
    }

    /// The events of every thread, the notes, and the functions.
    type Decoded = (Vec<(ThreadId, Event)>, Vec<(String, u64)>, Vec<u32>);

    fn reported(parts: u64, bytes: &[u8]) -> Result<Decoded, String> {
        let survey = survey_in(parts, &file(bytes), Mode::Strict);
        let survey = survey.map_err(|error| error.to_string())?;
        let functions = survey.functions.clone();
        let (trace, notes) = trace_of(file(bytes), survey, &Options::default()).unwrap();
        let mut all = Vec::new();
        for (thread, blocks) in trace.blocks_by_thread() {
            for block in blocks {
                for event in block.events() {
                    let event = event.unwrap();
                    // Every block repeats its processor at its begin.
                    if !matches!(event.body, EventBody::Cpu { .. }) {
                        all.push((thread, without_place(event)));
                    }
                }
            }
        }
        Ok((all, notes, functions))
    }

    /// The place of an event's data depends on the block.
    fn without_place(mut event: Event) -> Event {
        if let EventBody::Data { data, .. } = &mut event.body {
            data.at = 0;
        }
        event
    }

    #[test]
    fn parts_begin_at_buffers() {
        let bytes = log();
        let len = bytes.len() as u64;
        let layout = Events::new(&bytes[..], Mode::Strict).unwrap().layout();
        let buffers = |parts| {
            let begins = begins(parts, &file(&bytes), len, layout).unwrap();
            let whole = BUFFER_LEN + EXTENTS_LEN as u64;
            let begins = begins.into_iter().map(|at| at - HEADER_LEN as u64);
            let buffers = begins.map(|at| (at / whole, at % whole));
            buffers.collect::<Vec<_>>()
        };
        assert_eq!(buffers(0), []);
        assert_eq!(buffers(1), []);
        assert_eq!(buffers(2), [(30, 0)]);
        assert_eq!(buffers(4), [(15, 0), (30, 0), (45, 0)]);
    }

    #[test]
    fn parts_together_tell_what_one_does() {
        let bytes = log();
        let whole = reported(1, &bytes).unwrap();
        assert_eq!(whole.0.len(), 60 * 201);
        assert_eq!(whole.2, (1..=70).collect::<Vec<_>>());
        for parts in 2..=7 {
            assert!(reported(parts, &bytes).unwrap() == whole, "{parts} parts");
        }
    }

    #[test]
    fn damage_behind_the_first_part_is_reported_as_by_one_reader() {
        let whole = log();
        let mut unknown = whole.clone();
        // The first call of the middle buffer becomes a record of an unknown kind.
        let buffer = usize::try_from(BUFFER_LEN).unwrap() + EXTENTS_LEN;
        unknown[HEADER_LEN + 40 * buffer + 5 * 16] = 0xff;
        let cut = whole[..whole.len() - 3].to_vec();
        for (damage, bytes) in [("a record of no kind", unknown), ("a cut", cut)] {
            let expected = reported(1, &bytes).unwrap_err();
            for parts in 2..=4 {
                assert_eq!(
                    reported(parts, &bytes).unwrap_err(),
                    expected,
                    "{damage}, {parts} parts"
                );
            }
        }
    }
}
