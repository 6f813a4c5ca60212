//! The list of all formats, and the look-up of a format by its name or its file ending. The formats
//! themselves are in the files beside this one.

use std::path::Path;

use super::{
    Basic, Callgrind, Chrome, Csv, Ctf, Fdr, Firefox, Folded, FolderSink, JsonLines, LlvmProfile,
    ProfileSink, Sink, Speedscope, Xtrace, Yaml,
};
#[cfg(feature = "export")]
use super::{Parquet, Perfetto, Pprof};

/// A format that a trace can be written in.
#[derive(Debug, Clone, Copy)]
pub enum Format {
    /// One file.
    File(&'static dyn Sink),
    /// Several files in a directory.
    Folder(&'static dyn FolderSink),
}

/// Every format.
pub const FORMATS: &[Format] = &[
    Format::File(&Xtrace),
    Format::File(&Fdr),
    Format::File(&Basic::BY_TIME),
    Format::File(&Yaml::BY_TIME),
    Format::File(&Chrome),
    #[cfg(feature = "export")]
    Format::File(&Perfetto),
    Format::Folder(&Ctf),
    Format::File(&Speedscope),
    Format::File(&Firefox),
    Format::File(&Folded),
    #[cfg(feature = "export")]
    Format::File(&Pprof),
    Format::File(&Callgrind),
    Format::File(&LlvmProfile),
    Format::File(&Csv),
    Format::File(&JsonLines),
    #[cfg(feature = "export")]
    Format::Folder(&Parquet),
];

/// The format with this name.
#[must_use]
pub fn by_name(name: &str) -> Option<Format> {
    let mut formats = FORMATS.iter().copied();
    formats.find(|format| format.name() == name)
}

/// The format that the end of a file's name means. If several ends fit, the longest one counts.
#[must_use]
pub fn by_extension(path: &Path) -> Option<Format> {
    let name = path.file_name()?.to_str()?;
    let fits = |extension: &&'static str| {
        let stem = name.strip_suffix(*extension);
        stem.is_some_and(|stem| stem.len() > 1 && stem.ends_with('.'))
    };
    let len = |format: &Format| {
        let extensions = format.extensions().iter().filter(|end| fits(end));
        extensions.map(|extension| extension.len()).max()
    };
    let formats = FORMATS.iter().copied();
    formats
        .filter(|format| len(format).is_some())
        .max_by_key(len)
}

// === impl Format ===

impl Format {
    /// Whether the format has a place for the fields in the data of user events.
    #[must_use]
    pub fn has_fields(&self) -> bool {
        match self {
            Self::File(sink) => sink.of_events().is_some(),
            Self::Folder(sink) => sink.of_events().is_some(),
        }
    }

    /// The name by which a user asks for the format.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::File(sink) => sink.name(),
            Self::Folder(sink) => sink.name(),
        }
    }

    /// The ends of file names that mean the format, without the dot before.
    #[must_use]
    pub fn extensions(&self) -> &'static [&'static str] {
        match self {
            Self::File(sink) => sink.extensions(),
            Self::Folder(sink) => sink.extensions(),
        }
    }

    /// The format's use, in at most a line.
    #[must_use]
    pub fn about(&self) -> &'static str {
        match self {
            Self::File(sink) => sink.about(),
            Self::Folder(sink) => sink.about(),
        }
    }

    /// The same format for profiles; `None` if the format needs events.
    #[must_use]
    pub fn of_profile(&self) -> Option<&dyn ProfileSink> {
        match self {
            Self::File(sink) => sink.of_profile(),
            Self::Folder(_) => None,
        }
    }
}
