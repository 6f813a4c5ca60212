//! Copies of a fixture that are not as the compiler left them. The fixture itself stays.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::build::build;
use crate::fixture::Fixture;
use crate::tool::Tool;

/// Copies `fixture` with the libraries beside it into `dir`, and returns the program's path. Such a
/// copy can be deleted or replaced while it runs.
///
/// # Errors
/// The fixture cannot be built or copied.
pub fn copy_into(fixture: Fixture, dir: &Path) -> Result<PathBuf> {
    let program = build(fixture)?;
    let from = program
        .parent()
        .context("a built program lies in a directory")?;
    for entry in fs::read_dir(from).with_context(|| format!("cannot list {}", from.display()))? {
        let path = entry
            .with_context(|| format!("cannot list {}", from.display()))?
            .path();
        let to = dir.join(path.file_name().context("a file without a name")?);
        fs::copy(&path, &to)
            .with_context(|| format!("cannot copy {} to {}", path.display(), to.display()))?;
    }
    Ok(dir.join(fixture.name()))
}

/// The same as [`copy_into`], without symbols and debug information.
///
/// # Errors
/// The same as for [`copy_into`], and a missing `strip`.
pub fn stripped_into(fixture: Fixture, dir: &Path) -> Result<PathBuf> {
    let program = copy_into(fixture, dir)?;
    Tool::Strip.run([program.as_os_str()])?;
    Ok(program)
}

/// The same as [`copy_into`], without any section header: only what the kernel needs remains.
///
/// # Errors
/// The same as for [`copy_into`].
pub fn sectionless_into(fixture: Fixture, dir: &Path) -> Result<PathBuf> {
    let program = copy_into(fixture, dir)?;
    let mut bytes =
        fs::read(&program).with_context(|| format!("cannot read {}", program.display()))?;
    // e_shoff, then e_shnum and e_shstrndx of a 64-bit header.
    for field in [0x28..0x30, 0x3c..0x3e, 0x3e..0x40] {
        bytes
            .get_mut(field)
            .context("the program has no whole ELF header")?
            .fill(0);
    }
    fs::write(&program, bytes).with_context(|| format!("cannot write {}", program.display()))?;
    Ok(program)
}
