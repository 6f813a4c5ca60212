//! A producer in another process that is killed while it writes: the collector has everything up to
//! the last whole word.
#![cfg(all(target_os = "linux", not(miri), not(loom)))]
#![expect(clippy::unwrap_used, reason = "helpers of a test")]

use std::{
    fs::File,
    os::fd::AsRawFd,
    process::{Child, Command},
    time::{Duration, Instant},
};

use nix::sys::memfd::{MFdFlags, memfd_create};
use shm_ring::{
    Consumer, Content, Event, Geometry, Item, Mapping, Outcome, Producer, SharedMemory, Table,
    Target,
};

/// The environment variable that makes a process of this program the producer. Its value is the
/// rings' file.
const FILE: &str = "SHM_RING_TEST_FILE";
/// The counters of the producer in the rings' header page: events recorded and events lost.
const RECORDED: u64 = 1024;
const LOST: u64 = 1032;

/// A stack that goes up and down, by more than the window of a view.
fn sp_of(number: u64) -> u64 {
    0x7ffd_2345_6788 - number % 1000 * 128
}

fn geometry() -> Geometry {
    Geometry::new(Geometry::MIN_RING_BYTES, 1).unwrap()
}

/// The body of the other process, until it is killed; no test by itself.
#[test]
fn producer_process() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let file = File::options().read(true).write(true).open(path).unwrap();
    let geometry = geometry();
    let rings = Mapping::new(&file, 0, geometry.rings_bytes()).unwrap();
    let table = Table::new(geometry);
    let target = Target {
        table: &table,
        rings: &rings,
        geometry,
    };
    let (mut recorded, mut lost) = (0, 0);
    for number in 0u64.. {
        let event = Event {
            site: 1,
            sp: sp_of(number),
            content: Content::Argument(number),
        };
        match target.record(geometry.slots(), event, number * 1000) {
            Outcome::Recorded => recorded += 1,
            Outcome::Lost => lost += 1,
            other => panic!("{other:?}"),
        }
        rings.store(RECORDED, recorded);
        rings.store(LOST, lost);
        if number % 16 == 0 {
            std::thread::yield_now();
        }
    }
}

/// A process that ends with the test.
struct Killed(Child);

impl Killed {
    fn kill(&mut self) {
        self.0.kill().unwrap();
        self.0.wait().unwrap();
    }
}

impl Drop for Killed {
    fn drop(&mut self) {
        // After `kill` there is nothing left to do. Before it the test has failed already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[derive(Debug, Default)]
struct Read {
    calls: u64,
    reported: u64,
    last: Option<u64>,
}

impl Read {
    fn take(&mut self, item: Item) {
        match item {
            Item::Lost(count) => self.reported += count,
            Item::Waited(_) => panic!("no thread waits"),
            Item::Data(data) => panic!("no payload was written: {data:?}"),
            Item::Call {
                site,
                ticks,
                sp,
                argument,
            } => {
                let number = argument.expect("every event has its number");
                assert_eq!((site, ticks, sp), (1, number * 1000, sp_of(number)));
                assert!(self.last.is_none_or(|last| last < number), "in order");
                // One number is missing for each loss that was reported before it.
                self.calls += 1;
                self.last = Some(number);
                assert_eq!(
                    self.calls + self.reported,
                    number + 1,
                    "nothing missing but what was told"
                );
            }
        }
    }
}

#[test]
fn a_killed_producer_leaves_every_whole_word() {
    let geometry = geometry();
    for round in 0..12u64 {
        let file = File::from(memfd_create(c"rings", MFdFlags::empty()).unwrap());
        file.set_len(geometry.rings_bytes()).unwrap();
        let rings = Mapping::new(&file, 0, geometry.rings_bytes()).unwrap();
        let mut consumer = Consumer::resume(&rings, geometry, 0);
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        let mut child = Killed(
            Command::new(std::env::current_exe().unwrap())
                .args(["--exact", "producer_process"])
                .env(FILE, path)
                .stdout(std::process::Stdio::null())
                .spawn()
                .unwrap(),
        );
        let mut read = Read::default();
        let deadline = Instant::now() + Duration::from_secs(60);
        // The kill comes after more events in each round. Every other round lets the ring overflow
        // first.
        let wanted = 1 + round * 3000;
        while read.calls < wanted {
            assert!(Instant::now() < deadline, "{read:?} in a minute");
            if round % 2 == 1 && rings.load(LOST) < 100 && round < 8 {
                std::thread::yield_now();
                continue;
            }
            consumer.drain(&rings, Producer::Alive, 0, 1 << 14, |item| read.take(item));
        }
        child.kill();
        consumer.drain(&rings, Producer::Gone, 0, u64::MAX, |item| read.take(item));
        consumer.tell_losses(&rings, |item| read.take(item));
        let (recorded, lost) = (rings.load(RECORDED), rings.load(LOST));
        // The last event may have been recorded or counted without being noted.
        let noted = recorded + lost;
        assert!(
            (recorded..=recorded + 1).contains(&read.calls),
            "{read:?} {recorded} {lost}"
        );
        assert!(
            (noted..=noted + 1).contains(&(read.calls + read.reported)),
            "{read:?} {noted}"
        );
    }
}
