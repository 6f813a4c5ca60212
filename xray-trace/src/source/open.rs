//! Opens a file of any kind: detects its format, and calls the importer of that format.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufReader, Read as _, Seek as _};
use std::path::Path;

use super::{
    OpenError, Opened, OpenedProfile, Options, basic, chrome, ctf, fdr, perf, profile, rows, yaml,
};
use crate::llvm::{Format, PREFIX_LEN};
use crate::model::{Profile, Trace};

/// The most files of a folder.
const MOST_FILES: usize = 1 << 16;

/// Opens a trace of any format. The content of the file determines the format.
///
/// # Errors
///
/// If the file cannot be read, has another content, or is damaged and the options do not salvage
/// it.
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
        Format::JsonLines => rows::import_json_lines(buffered(file), options)?,
        Format::Csv => rows::import_csv(buffered(file), options)?,
        Format::Chrome => chrome::import(buffered(file), options)?,
        Format::PerfData => perf::import(file, options)?,
        // A folder, and no file.
        Format::Ctf => return Err(OpenError::Unknown),
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

/// Opens a trace in the Common Trace Format, by its folder.
///
/// # Errors
///
/// If the folder or a file in it cannot be read, has another content, or is damaged and the options
/// do not salvage it.
pub fn open_folder(path: &Path, options: &Options) -> Result<Opened, OpenError> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        let entry = entry?;
        // LTTng keeps its index in a folder beside the streams. Links to files are files.
        if fs::metadata(entry.path()).is_ok_and(|file| file.is_file()) {
            names.push(entry.file_name());
        }
        if names.len() > MOST_FILES {
            return Err(io::Error::other("the folder has more than 65,536 files").into());
        }
    }
    if !names.iter().any(|name| name == ctf::METADATA) {
        return Err(OpenError::NoMetadata);
    }
    let open = |name: &OsStr| File::open(path.join(name));
    let (trace, notes) = ctf::import(names, open, options)?;
    Ok(Opened {
        trace,
        format: Format::Ctf,
        notes,
    })
}

/// Opens a profile: one in an `.xtrace`, or one of XRay's profiling mode, with the runtime's header
/// or without.
///
/// # Errors
///
/// If the file cannot be read, has another content, or is damaged and the options do not salvage
/// it.
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

/// The trace in an `.xtrace`, unless it is a profile.
fn xtrace(file: File) -> Result<Trace, OpenError> {
    let trace = Trace::open(file)?;
    match trace.blocks().is_empty() && !trace.profile_parts().is_empty() {
        true => Err(OpenError::Profile),
        false => Ok(trace),
    }
}

/// The kind of the file. Sets the position of the file to its begin.
fn detect(file: &mut File) -> io::Result<Format> {
    // The caller may have read from it before.
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
