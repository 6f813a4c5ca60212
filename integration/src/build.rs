//! Compiles fixtures: each once, whoever asks, however many tests ask at the same time.

use std::fs::{self, File};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};

use crate::binaries::target_dir;
use crate::fixture::{Fixture, Recipe};
use crate::tool::output_of;

/// The program of `fixture`, compiled if it has not been yet.
///
/// It lies in a directory of its own, `target/fixtures/<name>-<hash of sources and commands>/`, with the libraries
/// it needs beside it.
///
/// # Errors
/// When a compiler is missing (the error names the package) or complains.
pub fn build(fixture: Fixture) -> Result<PathBuf> {
    let recipe = fixture.recipe();
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures");
    let key = key(&recipe, &sources)?;
    let cache = target_dir()?.join("fixtures");
    fs::create_dir_all(&cache).with_context(|| format!("cannot create {}", cache.display()))?;
    let finished = cache.join(format!("{}-{key:016x}", fixture.name()));
    let program = finished.join(fixture.name());
    if program.is_file() {
        return Ok(program);
    }

    let lock_path = cache.join(format!("{}.lock", fixture.name()));
    let lock_file = File::create(&lock_path)
        .with_context(|| format!("cannot create {}", lock_path.display()))?;
    let lock = Flock::lock(lock_file, FlockArg::LockExclusive)
        .map_err(|(_, errno)| errno)
        .with_context(|| format!("cannot lock {}", lock_path.display()))?;
    if !program.is_file() {
        compile(fixture, &recipe, &sources, &cache, &finished)?;
    }
    drop(lock);
    Ok(program)
}

/// The finished directory appears in one step: a build that is interrupted leaves nothing that looks whole.
fn compile(
    fixture: Fixture,
    recipe: &Recipe,
    sources: &Path,
    cache: &Path,
    finished: &Path,
) -> Result<()> {
    let work = tempfile::Builder::new()
        .prefix(&format!(".{}-", fixture.name()))
        .tempdir_in(cache)
        .context("cannot create a directory to compile in")?;
    if let Some((name, text)) = &recipe.generated {
        fs::write(work.path().join(name), text).with_context(|| format!("cannot write {name}"))?;
    }
    for (tool, arguments) in &recipe.steps {
        let mut command = tool.command()?;
        command.current_dir(work.path());
        // Unstable options of a stable rustc; no other tool looks at it.
        command.env("RUSTC_BOOTSTRAP", "1");
        for argument in arguments {
            command.arg(argument.replace("{src}", &sources.to_string_lossy()));
        }
        output_of(&mut command).with_context(|| format!("cannot compile {}", fixture.name()))?;
    }
    let work = work.keep();
    fs::rename(&work, finished)
        .with_context(|| format!("cannot rename {} to {}", work.display(), finished.display()))
}

fn key(recipe: &Recipe, sources: &Path) -> Result<u64> {
    let Recipe {
        sources: names,
        generated,
        steps,
    } = recipe;
    let mut hasher = DefaultHasher::new();
    for name in *names {
        let path = sources.join(name);
        name.hash(&mut hasher);
        fs::read(&path)
            .with_context(|| format!("cannot read {}", path.display()))?
            .hash(&mut hasher);
    }
    generated.hash(&mut hasher);
    for (tool, arguments) in steps {
        tool.path()?.hash(&mut hasher);
        arguments.hash(&mut hasher);
    }
    Ok(hasher.finish())
}
