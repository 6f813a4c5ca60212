//! Format and destination of log lines: standard error, as text for people or with priorities for
//! journald.
//!
//! A line stays one line, whatever the values in it are, and has a bounded length. A call site that
//! logs too often loses lines. The next line of that site is preceded by their number.

use std::{
    collections::HashMap,
    env, fmt,
    io::{self, IsTerminal as _},
    panic,
    sync::Mutex,
    time::Instant,
};

use tracing::{Event, Level, Subscriber, callsite::Identifier, level_filters::LevelFilter};
use tracing_subscriber::{
    field::{MakeVisitor as _, RecordFields, VisitOutput as _},
    fmt::{
        FmtContext, FormatEvent, FormatFields, MakeWriter,
        format::{DefaultFields, Format, Full, Writer},
        time::FormatTime,
    },
    registry::LookupSpan,
};

use crate::{
    lock::lock,
    panics::message_of,
    rate::{Bucket, Rate},
    text::is_hazard,
};

/// Limit on the message and the fields of a line, in bytes.
const LONGEST_LINE: usize = 8192;

/// The target of lines that are audit records.
pub(crate) const AUDIT_TARGET: &str = "audit";

/// The form of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// `journal` if a service manager connected standard error to journald, else `text`.
    Auto,
    /// Time, level, message and fields; coloured on a terminal.
    Text,
    /// A priority in front (`<6>`) and no time, because journald adds its own.
    Journal,
}

/// The rate of lines of one call site. Audit records are exempt.
const SITE_RATE: Rate = Rate {
    burst: 200,
    per_second: 20,
};

/// The log lines of all call sites, each within its rate.
#[derive(Debug)]
struct Lines<T> {
    format: Format<Full, T>,
    prefix: Prefix,
    /// The most detailed level of log lines. Audit records pass at every level.
    level: LevelFilter,
    /// Rates by call site. The number of log statements in the program bounds their number.
    sites: Mutex<HashMap<Identifier, Bucket>>,
}

/// The prefix of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Prefix {
    Nothing,
    /// A priority, as journald takes it from standard error: `<6>message fields`
    /// (<https://www.freedesktop.org/software/systemd/man/252/sd-daemon.html>).
    Priority,
}

/// Message and fields of a line. Hazards are escaped, and an overlong text is cut off.
#[derive(Debug)]
struct Escaped;

/// The writer of [`Escaped`].
struct Escaping<'a, 'w> {
    out: &'a mut Writer<'w>,
    /// Bytes that may still be written.
    room: usize,
    /// Bytes that were cut off.
    cut: usize,
}

/// Installs the log, and logs panics from here on. Called once, before anything else.
pub fn init(format: LogFormat, level: LevelFilter) {
    let journal = match format {
        LogFormat::Auto => env::var_os("JOURNAL_STREAM").is_some(),
        LogFormat::Text => false,
        LogFormat::Journal => true,
    };
    let prefix = if journal {
        Prefix::Priority
    } else {
        Prefix::Nothing
    };
    let ansi = !journal && io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none();
    let subscriber = subscriber(prefix, ansi, level, io::stderr);
    // No subscriber exists before the first call, which is the only one.
    let _ = tracing::subscriber::set_global_default(subscriber);
    panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let message = message_of(info.payload());
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(
            thread,
            place,
            message,
            "panic: a bug in xrayd; other sessions continue"
        );
    }));
}

/// A subscriber that writes lines to the writers of `out`.
fn subscriber<W>(
    prefix: Prefix,
    ansi: bool,
    level: LevelFilter,
    out: W,
) -> Box<dyn Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    // Audit records pass at every level.
    let builder = tracing_subscriber::fmt()
        .with_max_level(level.max(LevelFilter::INFO))
        .with_writer(out)
        .with_ansi(ansi)
        .fmt_fields(Escaped);
    match prefix {
        Prefix::Priority => {
            let line = Format::default().without_time().with_level(false);
            Box::new(
                builder
                    .event_format(Lines::new(line, prefix, level))
                    .finish(),
            )
        }
        Prefix::Nothing => {
            let lines = Lines::new(Format::default(), prefix, level);
            Box::new(builder.event_format(lines).finish())
        }
    }
}

// === impl Lines ===

impl<T> Lines<T> {
    fn new(format: Format<Full, T>, prefix: Prefix, level: LevelFilter) -> Self {
        Self {
            format,
            prefix,
            level,
            sites: Mutex::default(),
        }
    }

    /// Lines of this site that were dropped since its last one. `None` if this one is dropped, too.
    fn admit(&self, event: &Event<'_>) -> Option<u64> {
        let metadata = event.metadata();
        // Audit records have a rate for each user instead.
        if metadata.target() == AUDIT_TARGET {
            return Some(0);
        }
        if *metadata.level() > self.level {
            return None;
        }
        // An administrator who asks for details gets all of them.
        if *metadata.level() > Level::INFO {
            return Some(0);
        }
        let now = Instant::now();
        let mut sites = lock(&self.sites);
        let bucket = sites
            .entry(event.metadata().callsite())
            .or_insert_with(|| Bucket::full(SITE_RATE, now));
        bucket.take(SITE_RATE, now).then(|| bucket.take_dropped())
    }
}

impl<S, N, T> FormatEvent<S, N> for Lines<T>
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
    T: FormatTime,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        let Some(dropped) = self.admit(event) else {
            return Ok(());
        };
        let metadata = event.metadata();
        let prefix = match self.prefix {
            Prefix::Nothing => "",
            Prefix::Priority => priority(*metadata.level()),
        };
        if dropped > 0 {
            let target = metadata.target();
            writeln!(
                writer,
                "{prefix}{target}: {dropped} lines like the next one were dropped"
            )?;
        }
        writer.write_str(prefix)?;
        self.format.format_event(ctx, writer, event)
    }
}

// === impl Escaped ===

impl<'w> FormatFields<'w> for Escaped {
    fn format_fields<R: RecordFields>(&self, mut out: Writer<'w>, fields: R) -> fmt::Result {
        let mut escaping = Escaping {
            out: &mut out,
            room: LONGEST_LINE,
            cut: 0,
        };
        // Without colours, because their escape sequences would be escaped.
        let mut visitor = DefaultFields::new().make_visitor(Writer::new(&mut escaping));
        fields.record(&mut visitor);
        visitor.finish()?;
        let cut = escaping.cut;
        if cut > 0 {
            write!(out, "… ({cut} bytes cut off)")?;
        }
        Ok(())
    }
}

// === impl Escaping ===

impl fmt::Write for Escaping<'_, '_> {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for c in text.chars() {
            if c.len_utf8() > self.room {
                self.room = 0;
                self.cut += c.len_utf8();
            } else if is_hazard(c) {
                self.room = self.room.saturating_sub(c.escape_default().len());
                write!(self.out, "{}", c.escape_default())?;
            } else {
                self.room -= c.len_utf8();
                self.out.write_char(c)?;
            }
        }
        Ok(())
    }
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    /// A log in memory.
    #[derive(Debug, Clone, Default)]
    struct Memory(Arc<Mutex<Vec<u8>>>);

    impl io::Write for Memory {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            lock(&self.0).extend(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    /// The lines that `log` writes.
    fn lines_of(prefix: Prefix, log: impl FnOnce()) -> Vec<String> {
        lines_up_to(LevelFilter::INFO, prefix, log)
    }

    fn lines_up_to(level: LevelFilter, prefix: Prefix, log: impl FnOnce()) -> Vec<String> {
        let memory = Memory::default();
        let out = memory.clone();
        let subscriber = subscriber(prefix, false, level, move || out.clone());
        tracing::subscriber::with_default(subscriber, log);
        let text = String::from_utf8(lock(&memory.0).clone()).unwrap();
        // Each of these characters may end a line where the log is shown.
        let ends = ['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}'];
        text.trim_end_matches('\n')
            .split(ends)
            .map(str::to_owned)
            .collect()
    }

    #[test]
    fn no_value_begins_a_line_or_drives_a_terminal() {
        for end in [
            "\n",
            "\r",
            "\u{85}",
            "\u{2028}",
            "\u{2029}",
            "\u{1b}[2K\u{202e}",
        ] {
            let forged = format!("x{end}<6>xrayd: attached uid=0 pid=4711");
            let error = io::Error::other(forged.clone());
            for prefix in [Prefix::Nothing, Prefix::Priority] {
                let lines = lines_of(prefix, || {
                    tracing::warn!(%forged, "a field");
                    tracing::warn!(message = forged.as_str(), "a message");
                    tracing::warn!(forged, "a text");
                    tracing::warn!("within the message: {forged}");
                    tracing::warn!(error = &error as &dyn std::error::Error, "an error");
                });
                assert_eq!(lines.len(), 5, "{lines:#?}");
                for line in &lines {
                    assert!(!line.contains(is_hazard), "{line:?}");
                    assert!(line.contains("attached uid=0"), "{line:?}");
                    if prefix == Prefix::Priority {
                        assert!(line.starts_with("<4>xrayd::logs"), "{line:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_line_has_a_bounded_length() {
        let long = "é\n".repeat(LONGEST_LINE);
        let lines = lines_of(Prefix::Priority, || tracing::info!(%long, "begins"));
        assert_eq!(lines.len(), 1);
        assert!(lines[0].len() < LONGEST_LINE + 100, "{}", lines[0].len());
        assert!(lines[0].ends_with("bytes cut off)"), "{}", lines[0]);
    }

    /// Users have rates of their own for their records: one user's records cost no other's.
    #[test]
    fn audit_records_are_not_dropped_as_lines_of_one_site() {
        let records = 2 * SITE_RATE.burst as usize;
        let lines = lines_of(Prefix::Priority, || {
            for number in 0..records {
                tracing::info!(target: AUDIT_TARGET, "{number}");
            }
        });
        assert_eq!(lines.len(), records);
    }

    #[test]
    fn audit_records_pass_at_every_log_level() {
        for level in [LevelFilter::OFF, LevelFilter::WARN] {
            let lines = lines_up_to(level, Prefix::Nothing, || {
                tracing::info!("a line");
                tracing::info!(target: AUDIT_TARGET, "a record");
            });
            assert!(
                lines.len() == 1 && lines[0].ends_with("a record"),
                "{lines:?}"
            );
        }
    }

    #[test]
    fn a_site_that_floods_loses_lines_and_other_sites_do_not() {
        let flood = 10 * SITE_RATE.burst;
        let lines = lines_of(Prefix::Nothing, || {
            let log = |number: u32| tracing::warn!(number, "flood");
            (0..flood).for_each(log);
            // The bucket has another token then, whatever was dropped so far.
            std::thread::sleep(Duration::from_secs(2) / SITE_RATE.per_second);
            log(flood);
            tracing::warn!("another");
        });
        let with = |text| lines.iter().filter(|line| line.contains(text)).count();
        // A slow machine refills the bucket meanwhile.
        assert!(with("flood") < flood as usize / 2, "{}", with("flood"));
        assert_eq!(with("another"), 1);
        assert!(
            with("lines like the next one were dropped") >= 1,
            "{lines:#?}"
        );
    }
}
