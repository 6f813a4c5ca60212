//! Standard output: whether it is a terminal, how wide, and whether it may be coloured.

use std::env;
use std::io::{self, BufWriter, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use crate::failure::OutputClosed;

/// When to use colours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub(crate) enum ColourChoice {
    /// On a terminal, unless NO_COLOR is set.
    #[default]
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

/// What a text means; decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing special.
    Plain,
    /// The head of a column.
    Heading,
    /// All is well, or switched on.
    Good,
    /// Less than one would like.
    Warning,
    /// Refused, lost, broken.
    Bad,
    /// Of less interest.
    Dim,
    /// The name of a function.
    Name,
}

/// What rendering may make use of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// Colours are wanted.
    pub(crate) colour: bool,
    /// Lines are cut at this many characters; `None`: nothing is cut.
    pub(crate) width: Option<usize>,
}

/// Standard output, and what is known of it.
pub(crate) struct Console {
    out: BufWriter<Standard>,
    look: Look,
    terminal: bool,
    progress: bool,
}

/// Standard output; a reader that has gone away is told apart from any other broken pipe, and other errors say what cannot be
/// written.
struct Standard(io::Stdout);

// === impl Tone ===

impl Tone {
    fn style(self) -> Style {
        match self {
            Self::Plain => Style::new(),
            Self::Heading => Style::new().bold(),
            Self::Good => AnsiColor::Green.on_default(),
            Self::Warning => AnsiColor::Yellow.on_default(),
            Self::Bad => AnsiColor::Red.on_default(),
            Self::Dim => Style::new().dimmed(),
            Self::Name => AnsiColor::Cyan.on_default(),
        }
    }
}

// === impl Look ===

impl Look {
    /// As for a file or a pipe: no colours, nothing cut.
    pub(crate) const PLAIN: Self = Self {
        colour: false,
        width: None,
    };

    /// The text in the colour of its tone.
    pub(crate) fn paint(self, tone: Tone, text: &str) -> String {
        let style = tone.style();
        if self.colour && tone != Tone::Plain {
            format!("{}{text}{}", style.render(), style.render_reset())
        } else {
            text.to_owned()
        }
    }
}

// === impl Console ===

impl Console {
    /// Looks at standard output and at the environment.
    pub(crate) fn new(choice: ColourChoice) -> Self {
        let terminal = io::stdout().is_terminal();
        let wanted = env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
        let colour = match choice {
            ColourChoice::Auto => terminal && wanted,
            ColourChoice::Always => true,
            ColourChoice::Never => false,
        };
        let width = terminal_size::terminal_size().filter(|_| terminal);
        Self {
            out: BufWriter::new(Standard(io::stdout())),
            look: Look {
                colour,
                width: width.map(|(width, _)| usize::from(width.0)),
            },
            terminal,
            progress: io::stderr().is_terminal(),
        }
    }

    /// Standard output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// Standard error is a terminal, so that progress can be shown.
    pub(crate) fn shows_progress(&self) -> bool {
        self.progress
    }

    /// Writes what a function renders.
    pub(crate) fn show(
        &mut self,
        render: impl FnOnce(&mut dyn Write, Look) -> io::Result<()>,
    ) -> anyhow::Result<()> {
        render(&mut self.out, self.look)?;
        Ok(self.out.flush()?)
    }

    /// Writes one line.
    pub(crate) fn line(&mut self, line: &str) -> anyhow::Result<()> {
        self.show(|out, _| writeln!(out, "{line}"))
    }

    /// Writes a value as JSON, indented, with a newline at the end. It is written as it is made.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.show(|out, _| {
            serde_json::to_writer_pretty(&mut *out, value)?;
            writeln!(out)
        })
    }

    /// Writes a line for people on standard error, where it does not disturb what is written for programs.
    pub(crate) fn note(&self, line: &str) {
        // If standard error is gone there is nobody left to tell.
        let _ = writeln!(io::stderr(), "xrayctl: {line}");
    }
}

// === impl Standard ===

impl Write for Standard {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(closed)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(closed)
    }
}

fn closed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        io::Error::new(io::ErrorKind::BrokenPipe, OutputClosed)
    } else {
        let what = format!("cannot write to standard output: {error}");
        io::Error::new(error.kind(), what)
    }
}
