//! SQLite: its shell with a script, and its own benchmark.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context as _, Result, ensure};
use integration::{Built, DEADLINE, Program, Target, build_program};
use serde_json::Value;
use tempfile::TempDir;

use super::client::ensure_same;
use super::storm::{Work, trace};
use crate::scene::Scene;

/// The journals. Every piece of work starts with one of them.
const JOURNALS: [&str; 2] = ["DELETE", "WAL"];

/// Tables, trees, texts, triggers, windows and JSON, without a clock or chance.
const SCRIPT: &str = r"
CREATE TABLE stock(id INTEGER PRIMARY KEY, name TEXT UNIQUE, price REAL, size INT);
CREATE TABLE moved(id INTEGER PRIMARY KEY, stock INT REFERENCES stock(id), by INT, note TEXT);
CREATE INDEX moved_by ON moved(stock, by);
CREATE TRIGGER booked AFTER INSERT ON moved BEGIN UPDATE stock SET size = size + new.by WHERE id = new.stock; END;
CREATE VIRTUAL TABLE words USING fts5(body);
CREATE VIRTUAL TABLE boxes USING rtree(id, x0, x1, y0, y1);
BEGIN;
WITH RECURSIVE n(i, r) AS (SELECT 1, 7 UNION ALL SELECT i + 1, (r * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 400)
  INSERT INTO stock SELECT i, printf('%08x-%d', r, i), r % 10007 / 7.0, 0 FROM n;
WITH RECURSIVE n(i, r) AS (SELECT 1, 11 UNION ALL SELECT i + 1, (r * 1103515245 + 12345) % 2147483648 FROM n WHERE i < 1500)
  INSERT INTO moved SELECT i, 1 + r / 64 % 400, r / 1024 % 90 - 30, hex(r) FROM n;
INSERT INTO words SELECT name || ' ' || size || ' of ' || replace(name, '-', ' ') FROM stock;
INSERT INTO boxes SELECT id, size, size + 5, price, price + 20 FROM stock;
COMMIT;
SELECT count(*), sum(size), round(sum(price), 6), group_concat(id % 10, '') FROM stock;
SELECT stock.id, sum(by), rank() OVER (ORDER BY sum(by) DESC, stock.id), lag(name) OVER (ORDER BY stock.id)
  FROM stock JOIN moved ON moved.stock = stock.id GROUP BY stock.id HAVING sum(by) > 40 ORDER BY 3 LIMIT 40;
SELECT rowid, snippet(words, 0, '[', ']', '…', 4) FROM words WHERE words MATCH '1* OR 4*' ORDER BY rank, rowid LIMIT 30;
SELECT count(*), sum(a.id * b.id % 97) FROM boxes a JOIN boxes b ON a.x0 <= b.x1 AND a.x1 >= b.x0 AND a.y0 <= b.y1 AND a.y1 >= b.y0;
SELECT json_group_array(json_object('id', id, 'name', name)) FROM (SELECT * FROM stock WHERE name LIKE '%f%' ORDER BY price, id LIMIT 25);
SELECT * FROM no_such_table;
SAVEPOINT here;
DELETE FROM moved WHERE stock % 3 = 0;
UPDATE stock SET name = upper(name) || id WHERE size < 0;
INSERT INTO stock VALUES (1, 'twice', 0, 0);
SELECT count(*), total(size) FROM stock WHERE name GLOB '*[A-F]*';
ROLLBACK TO here;
DELETE FROM moved WHERE id % 5 = 0;
RELEASE here;
VACUUM;
PRAGMA integrity_check;
.sha3sum
";

/// A shell that runs a script.
struct Shell {
    target: Mutex<Target>,
    pid: i32,
    program: PathBuf,
    dir: TempDir,
    /// Its output for each piece of work in an untraced run.
    expected: Vec<String>,
}

#[test]
fn sqlite_works_on_under_every_kind_of_tracing() -> Result<()> {
    let mut shell = Shell::start()?;
    trace(&shell)?;
    let target = shell
        .target
        .get_mut()
        .unwrap_or_else(PoisonError::into_inner);
    target.close_stdin();
    let status = target.wait(DEADLINE)?;
    // The script has errors, to check that these are the same, too.
    ensure!(status.code() == Some(1), "{status}");
    Ok(())
}

/// SQLite's own benchmark makes the same calls each time. With room for all events, all are
/// recorded. With almost no room, recorded and lost events add up to the same number.
#[test]
fn every_call_of_sqlites_benchmark_is_recorded_or_counted() -> Result<()> {
    let Built { dir, .. } = build_program(Program::Sqlite)?;
    let program = dir.join("speedtest1").display().to_string();
    let scene = Scene::new()?;
    let benchmark = |size: &str, more: &[&str]| -> Result<(String, Option<Value>)> {
        let command = [&program, "--size", size, "--verify", ":memory:"];
        let out = if more.is_empty() {
            let output = Command::new(command[0]).args(&command[1..]).output()?;
            String::from_utf8(output.stdout)?
        } else {
            scene.alone()?.ok([more, &["--"], &command].concat())?
        };
        let hash = out.lines().find(|line| line.contains("Verification Hash"));
        let recorded = out.find("\n{").map(|at| serde_json::from_str(&out[at..]));
        Ok((hash.context("no hash")?.to_owned(), recorded.transpose()?))
    };
    let (untraced, _) = benchmark("1", &[])?;
    let mut passed = Vec::new();
    for ring in ["64MiB", "64KiB", "1MiB"] {
        let record = ["record", "--all", "--force", "--json", "-o", "f"];
        let (traced, recorded) = benchmark("1", &[&record[..], &["--ring-size", ring]].concat())?;
        ensure!(traced == untraced, "{traced} instead of {untraced}");
        let recorded = recorded.context("nothing was said of the recording")?;
        let count = |field: &str| recorded[field].as_u64().context("no number");
        // All events fit this ring, even if it is never drained.
        ensure!(ring != "64MiB" || count("lost")? == 0, "{recorded}");
        let account = scene.alone()?.json(["report", "f", "--limit", "1"])?;
        for field in ["events", "lost"] {
            ensure!(account["trace"][field] == recorded[field], "{account}");
        }
        passed.push(count("events")? + count("lost")?);
    }
    ensure!(
        passed[0] > 1_000_000 && passed.iter().all(|each| *each == passed[0]),
        "{passed:?}"
    );
    Ok(())
}

// === impl Shell ===

impl Shell {
    fn start() -> Result<Self> {
        let program = build_program(Program::Sqlite)?.dir.join("sqlite3");
        let dir = tempfile::tempdir()?;
        let mut command = Command::new(&program);
        command
            .args(["-batch", "-init", "/dev/null"])
            .current_dir(dir.path())
            // Error messages are among the answers.
            .stderr(std::fs::File::create(dir.path().join("errors"))?);
        let target = Target::spawn_unready(command)?;
        let mut shell = Self {
            pid: target.pid(),
            target: Mutex::new(target),
            program,
            dir,
            expected: Vec::new(),
        };
        for journal in JOURNALS {
            let answer = shell.say(journal)?;
            shell.expected.push(answer);
        }
        Ok(shell)
    }

    /// The shell's output for the script.
    fn say(&self, journal: &str) -> Result<String> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.send(&format!(
            ".open --new {journal}.db\nPRAGMA journal_mode={journal};"
        ))?;
        target.send(SCRIPT)?;
        target.send(".print the end")?;
        let mut answer = String::new();
        loop {
            let line = target.line(DEADLINE)?;
            if line == "the end" {
                return Ok(answer);
            }
            answer.push_str(&line);
            answer.push('\n');
        }
    }

    /// The number of error lines so far.
    fn complaints(&self) -> Result<usize> {
        let text = std::fs::read_to_string(self.dir.path().join("errors"))?;
        Ok(text.lines().count())
    }
}

impl Work for Shell {
    fn program(&self) -> &Path {
        &self.program
    }

    fn pids(&self) -> Vec<i32> {
        vec![self.pid]
    }

    fn sides(&self) -> usize {
        1
    }

    fn work(&self, _: usize) -> Result<()> {
        // Both journals, one after the other.
        for (journal, expected) in JOURNALS.iter().zip(&self.expected) {
            ensure_same(self.say(journal)?.as_bytes(), expected.as_bytes())
                .with_context(|| format!("journal {journal}"))?;
        }
        Ok(())
    }

    fn counted(&self) -> (&'static [&'static str], Option<u64>) {
        (&["--function", "sqlite3RunParser"], None)
    }

    fn healthy(&self) -> Result<()> {
        let mut target = self.target.lock().unwrap_or_else(PoisonError::into_inner);
        target.still_running()?;
        // Each run of the script has the same errors.
        let complaints = self.complaints()?;
        ensure!(
            complaints > 0 && complaints % JOURNALS.len() == 0,
            "{complaints} complaints"
        );
        Ok(())
    }
}
