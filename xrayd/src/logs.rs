//! Where log lines go and how they look: standard error, as text for people or with priorities for journald.

use std::{
    any::Any,
    env, fmt,
    io::{self, IsTerminal as _},
    panic,
};

use tracing::{Event, Level, Subscriber, level_filters::LevelFilter};
use tracing_subscriber::{
    fmt::{
        FmtContext, FormatEvent, FormatFields,
        format::{Format, Full, Writer},
    },
    registry::LookupSpan,
};

use crate::config::LogFormat;

/// A line as journald takes it from standard error: `<6>message fields`
/// (<https://www.freedesktop.org/software/systemd/man/252/sd-daemon.html>).
#[derive(Debug)]
struct Journal(Format<Full, ()>);

/// Sends what is logged from here on to standard error, panics included. Called once, first of all.
pub fn init(format: LogFormat, level: LevelFilter) {
    let journal = match format {
        LogFormat::Auto => env::var_os("JOURNAL_STREAM").is_some(),
        LogFormat::Text => false,
        LogFormat::Journal => true,
    };
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(level)
        .with_writer(io::stderr);
    if journal {
        let line = Format::default()
            .without_time()
            .with_level(false)
            .with_ansi(false);
        subscriber
            .with_ansi(false)
            .event_format(Journal(line))
            .init();
    } else {
        subscriber
            .with_ansi(io::stderr().is_terminal() && env::var_os("NO_COLOR").is_none())
            .init();
    }
    panic::set_hook(Box::new(|info| {
        let thread = std::thread::current();
        let thread = thread.name().unwrap_or("unnamed");
        let message = message_of(info.payload());
        let place = info.location().map(ToString::to_string).unwrap_or_default();
        tracing::error!(
            thread,
            place,
            message,
            "panic: a bug in xrayd; the other sessions go on"
        );
    }));
}

// === impl Journal ===

impl<S, N> FormatEvent<S, N> for Journal
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(
        &self,
        ctx: &FmtContext<'_, S, N>,
        mut writer: Writer<'_>,
        event: &Event<'_>,
    ) -> fmt::Result {
        writer.write_str(priority(*event.metadata().level()))?;
        self.0.format_event(ctx, writer, event)
    }
}

/// What a panic says: `panic!` has either kind of text.
fn message_of(payload: &(dyn Any + Send)) -> &str {
    let literal = payload.downcast_ref::<&str>().copied();
    literal
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("no message")
}

fn priority(level: Level) -> &'static str {
    match level {
        Level::ERROR => "<3>",
        Level::WARN => "<4>",
        Level::INFO => "<6>",
        Level::DEBUG | Level::TRACE => "<7>",
    }
}
