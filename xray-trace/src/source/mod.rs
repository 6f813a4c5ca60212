//! From files of any kind to the trace model: our own format as it is, LLVM's logs and YAML by way of it.
//!
//! A foreign log is written anew as an `.xtrace`, block by block, into memory or, when it grows, into a file without a name; but
//! for those of the flight data recorder, whose buffers are blocks as they are. So memory does not grow with the number of events.

mod basic;
mod fdr;
mod importer;
mod profile;
mod spool;
mod yaml;

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufReader, Read as _, Seek as _};

use crate::FileAddr;
use crate::container::{ProfileError, ReadError};
use crate::llvm::{self, Format, Mode, PREFIX_LEN};
use crate::model::{Profile, SourceLine, Trace};

/// How a file is to be read.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// What to do about damage in a log of LLVM's.
    pub mode: Mode,
    /// What is known of the functions in a log of LLVM's, by their ids. Our own format has its own.
    pub functions: BTreeMap<i32, KnownFunction>,
    /// The program that the functions are of.
    pub program: String,
}

/// A function of an instrumentation map.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFunction {
    /// Its symbol.
    pub symbol: Option<String>,
    /// Its name for people.
    pub name: String,
    /// Where it begins.
    pub address: FileAddr,
    /// Where its source stands.
    pub source: Option<SourceLine>,
    /// How many sleds it has.
    pub sleds: u32,
}

/// A trace, and what is to be told about how it was read.
#[derive(Debug)]
pub struct Opened {
    /// The trace.
    pub trace: Trace,
    /// What kind of file it was.
    pub format: Format,
    /// What could not be kept as it was: in words, and how many. Never with a count of 0.
    pub notes: Vec<(String, u64)>,
}

/// A profile, and what is to be told about how it was read.
#[derive(Debug)]
pub struct OpenedProfile {
    /// The profile.
    pub profile: Profile,
    /// What kind of file it was.
    pub format: Format,
    /// When it was written, in nanoseconds since the Unix epoch; `None` if the file does not say.
    pub written_wall_ns: Option<u64>,
    /// What could not be kept as it was: in words, and how many. Never with a count of 0.
    pub notes: Vec<(String, u64)>,
}

/// Why a file is no trace.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// It cannot be read, or there is no room to convert it.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// It is an `.xtrace`, but damaged.
    #[error(transparent)]
    Xtrace(#[from] ReadError),
    /// It is a log of LLVM's, but damaged.
    #[error(transparent)]
    Llvm(#[from] llvm::Error),
    /// It is text, but not a trace in LLVM's YAML.
    #[error("not a trace: read as llvm-xray's YAML, {0}")]
    Yaml(llvm::Error),
    /// There is nothing in it.
    #[error("the file is empty")]
    Empty,
    /// It is a profile, for [`open_profile`].
    #[error("a profile has sums of calls, but no events: it is no trace")]
    Profile,
    /// It is a profile, but too large.
    #[error("the profile has more than {limit} different stacks of calls")]
    TooManyStacks {
        /// How many there may be.
        limit: usize,
    },
    /// It is no profile.
    #[error("not a profile")]
    NoProfile,
    /// It is a profile of ours, but damaged.
    #[error(transparent)]
    Damaged(#[from] ProfileError),
    /// None of the formats that are known.
    #[error(
        "not a trace: neither an .xtrace nor an XRay log (basic mode, flight data recorder) nor llvm-xray's YAML"
    )]
    Unknown,
}

/// Opens a trace of any kind. What kind it is is found from what is in it.
///
/// # Errors
///
/// If it cannot be read, is none, or is damaged and that is not to be salvaged.
pub fn open(mut file: File, options: &Options) -> Result<Opened, OpenError> {
    let format = detect(&mut file)?;
    let (trace, notes) = match format {
        Format::Xtrace => (xtrace(file)?, Vec::new()),
        Format::Basic(_) => basic::import(buffered(file), options)?,
        Format::Fdr(_) => fdr::open(file, options)?,
        Format::Yaml => yaml::import(buffered(file), options).map_err(|error| match error {
            OpenError::Llvm(error) => OpenError::Yaml(error),
            other => other,
        })?,
        Format::Empty => return Err(OpenError::Empty),
        Format::Profile(_) | Format::ProfileBlocks(_) => return Err(OpenError::Profile),
        Format::Unknown => return Err(OpenError::Unknown),
    };
    Ok(Opened {
        trace,
        format,
        notes,
    })
}

/// Opens a profile: our own, or one of XRay's profiling mode, with the runtime's header or without.
///
/// # Errors
///
/// If it cannot be read, is none, or is damaged and that is not to be salvaged.
pub fn open_profile(mut file: File, options: &Options) -> Result<OpenedProfile, OpenError> {
    match detect(&mut file)? {
        format @ (Format::Profile(_) | Format::ProfileBlocks(_)) => {
            profile::import(buffered(file), format, options)
        }
        Format::Xtrace => {
            let profile = Profile::of_trace(Trace::open(file)?)?;
            Ok(OpenedProfile {
                profile: profile.ok_or(OpenError::NoProfile)?,
                format: Format::Xtrace,
                written_wall_ns: None,
                notes: Vec::new(),
            })
        }
        _ => Err(OpenError::NoProfile),
    }
}

/// A trace of ours, if it is one of events.
fn xtrace(file: File) -> Result<Trace, OpenError> {
    let trace = Trace::open(file)?;
    match trace.blocks().is_empty() && !trace.profile_parts().is_empty() {
        true => Err(OpenError::Profile),
        false => Ok(trace),
    }
}

/// What kind of file it is, which is then at its beginning again.
fn detect(file: &mut File) -> io::Result<Format> {
    // Somebody may have looked into it before.
    file.rewind()?;
    let mut start = Vec::new();
    let wanted = u64::try_from(PREFIX_LEN).unwrap_or(u64::MAX);
    file.by_ref().take(wanted).read_to_end(&mut start)?;
    file.rewind()?;
    Ok(Format::detect(&start))
}

fn buffered(file: File) -> BufReader<File> {
    BufReader::with_capacity(1 << 18, file)
}
