//! Standard output: its width, its colours, and whether it is a terminal.

use std::env;
use std::io::{self, BufWriter, IsTerminal as _, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

use super::Names;
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

/// The meaning of a text, which decides its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tone {
    /// Nothing special.
    Plain,
    /// The head of a column.
    Heading,
    /// Success, or a function that is on.
    Good,
    /// Less than wanted.
    Warning,
    /// Refused, lost, broken.
    Bad,
    /// Less important.
    Dim,
    /// The name of a function.
    Name,
}

/// The abilities of the output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Look {
    /// True if colours are wanted.
    pub(crate) colour: bool,
    /// The number of characters at which lines are cut; `None` for no cut.
    pub(crate) width: Option<usize>,
    /// The form of the names of functions.
    pub(crate) names: Names,
}

/// Standard output and its properties.
pub(crate) struct Console {
    out: BufWriter<Standard>,
    look: Look,
    terminal: bool,
    progress: bool,
}

/// Standard output. It tells a reader that has gone away from other errors, and the other errors
/// name standard output.
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
    /// The look of a file or a pipe: without colours and cuts.
    pub(crate) const PLAIN: Self = Self {
        colour: false,
        width: None,
        names: Names::Short,
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
    pub(crate) fn new(choice: ColourChoice, names: Names) -> Self {
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
                names,
            },
            terminal,
            progress: io::stderr().is_terminal(),
        }
    }

    /// True if standard output is a terminal.
    pub(crate) fn is_terminal(&self) -> bool {
        self.terminal
    }

    /// The form of the names of functions.
    pub(crate) fn names(&self) -> Names {
        self.look.names
    }

    /// True if standard error is a terminal, so that progress can be shown.
    pub(crate) fn shows_progress(&self) -> bool {
        self.progress
    }

    /// Writes the text that a function renders.
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

    /// Writes a value as indented JSON with a newline at the end. The text is written as it is
    /// made.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> anyhow::Result<()> {
        self.show(|out, _| {
            serde_json::to_writer_pretty(&mut *out, value)?;
            writeln!(out)
        })
    }

    /// Writes a line for the user on standard error, apart from the output for programs.
    pub(crate) fn note(&self, line: &str) {
        // Without standard error, there is no place for an error.
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

/// The error of a write to standard output, so that [`crate::failure`] recognises a reader that has
/// gone away.
pub(crate) fn closed(error: io::Error) -> io::Error {
    if error.kind() == io::ErrorKind::BrokenPipe {
        io::Error::new(io::ErrorKind::BrokenPipe, OutputClosed)
    } else {
        let what = format!("cannot write to standard output: {error}");
        io::Error::new(error.kind(), what)
    }
}
