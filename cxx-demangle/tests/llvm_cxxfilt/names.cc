// Most of what C++ can put into a name, for the names.
#include <algorithm>
#include <any>
#include <chrono>
#include <functional>
#include <future>
#include <iostream>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <regex>
#include <set>
#include <sstream>
#include <string>
#include <thread>
#include <tuple>
#include <unordered_map>
#include <variant>
#include <vector>
#include <filesystem>
#include <random>
#if __cplusplus >= 202002L
#include <ranges>
#include <concepts>
#include <coroutine>
#include <span>
#endif
namespace app {
enum class Color : unsigned char { red, green };
template <class T, std::size_t N, T... Vs> struct Pack { static T sum() { return (Vs + ... + T(0)); } template<class F> static auto each(F&& f) { return (f(Vs), ...); } };
template <Color C, char Ch, bool B, long long L, short S, unsigned long long U> struct Lits { static int f() { return int(C)+Ch+B; } };
struct A { int x; int get() const & { return x; } int take() && { return x; } void vol() volatile {} A operator+(const A&o) const {return {x+o.x};} explicit operator bool() const {return x;} operator std::string() const {return "";}
#if __cplusplus >= 202002L
 auto operator<=>(const A&) const = default;
#else
 using char8_t = char;
#endif
 friend std::ostream& operator<<(std::ostream& o, const A& a){return o<<a.x;} friend std::istream& operator>>(std::istream& o, A& a){return o>>a.x;} void operator()(int)const{} int operator[](int i){return i;} void* operator new(size_t n){return ::operator new(n);} void operator delete(void*p){::operator delete(p);} A* operator->(){return this;} A& operator++(){++x;return *this;} A operator++(int){return *this;} };
A operator""_a(unsigned long long v){return {int(v)};}
template <auto V> struct Val { static auto get() { return V; } };
int global; int fn(int); template<int (*F)(int)> int call(int x){return F(x);} int fn(int x){return x;}
template<int A::*M> int mem(A&a){return a.*M;}
template<int (A::*M)() const &> int memf(A&a){return (a.*M)();}
template <template <class...> class TT, class... Ts> struct Apply { TT<Ts...> v; void go(TT<Ts...>&&, Ts&&... ts) {} };
template <class T> auto decl(T t) -> decltype(t + 1) { return t + 1; }
template <class T> auto decl2(T t) -> decltype(t.get(), std::declval<T>().x) { return 1; }
template <class T> std::enable_if_t<(sizeof(T) > 4), int> sz(T) { return 1; }
template <class T> std::enable_if_t<!(sizeof(T) > 4), int> sz(T) { return 2; }
template <class T, int N> void arr(T (&a)[N]) {}
template <class R, class... As> R inv(R (*f)(As...), As... as) { return f(as...); }
template <class R, class C, class... As> R invm(R (C::*f)(As...) const &, C& c, As... as) { return (c.*f)(as...); }
void vararg(const char*, ...) {}
auto lam() { return [](auto... xs) { return [=]() mutable { return (0 + ... + int(xs)); }; }; }
inline auto lam3 = [](int a){ return [a](double b){ return a+b; }; };
struct { int f() { return 1; } } anon;
#if __cplusplus < 202002L
using char8_t = char;
#endif
typedef int v4 __attribute__((vector_size(16)));
v4 vec(v4 a) { return a; }
_Complex double cplx(_Complex double a) { return a; }
void np(std::nullptr_t) {}
void blk(int (*a)[3], int (&b)[4], int (*(*c)(int))(char), const volatile int* const* d, int A::*e, void (A::*f)(int) const, void(&&g)()) {}
void ex(void (*f)() noexcept) {}
[[gnu::abi_tag("tagged")]] void tg() {}
template <class... T> struct Vis : T... { using T::operator()...; };
template <class... T> Vis(T...) -> Vis<T...>;
thread_local std::string tls = "x";
namespace { struct Hid { void f(){} }; template<class T> void hid(T){} }
inline namespace v1 { void inl() {} }
void int128(__int128 a, unsigned __int128 b, char8_t c8, char16_t c16, char32_t c32, wchar_t w, long double ld, float f, signed char sc) {}
void f16(_Float16, __float128*) {}
#if __cplusplus >= 202002L
template <std::integral T> T con(T t) { return t; }
template <class T> requires (sizeof(T) > 2) && std::copyable<T> T con2(T t) { return t; }
auto con3(std::integral auto x, auto... y) { return x; }
struct Str { char s[6]; }; template <Str S> int str() { return S.s[0]; }
struct Pt { int x, y; double d; }; template <Pt P> int pt() { return P.x; }
struct Task { struct promise_type { Task get_return_object(){return {};} std::suspend_never initial_suspend(){return {};} std::suspend_never final_suspend() noexcept {return {};} void return_void(){} void unhandled_exception(){} }; };
Task coro(int x) { co_await std::suspend_never{}; }
#endif
}
using namespace app;
int main(int argc, char** argv) {
  Pack<int, 3, 1, 2, 3>::sum(); Pack<char, 3, 'a', 'b'>::each([](char c) { return c; }); Pack<unsigned, 0>::sum();
  Lits<Color::green, 'x', true, -5, 7, 9>::f();
  A a{1}; a.get(); A{2}.take(); a + a; (bool)a; std::string s = a; std::cout << a; std::cin >> a; a(1); a[1]; 1_a; delete new A; a++; ++a; a->x;
  Val<5>::get(); Val<&global>::get(); Val<nullptr>::get(); Val<Color::red>::get(); Val<5ul>::get(); Val<'c'>::get(); Val<&A::x>::get(); Val<&A::vol>::get();
  call<fn>(1); mem<&A::x>(a); memf<&A::get>(a);
  Apply<std::tuple, int, double> ap; ap.go({}, 1, 2.); Apply<std::tuple> ap0; ap0.go({});
  decl(1); decl(2.5); decl2(a); sz(1); sz(1.0); int arr3[3]; arr(arr3); inv(fn, 1); invm(&A::get, a);
  vararg(""); lam()(1, 2, 'c')(); lam3(1)(2.); lam()()(); anon.f(); vec(v4{}); cplx(1); np(nullptr); 
  std::variant<int, std::string, A> v = 1; std::visit(Vis{[](int) {}, [](std::string&) {}, [](const A&) {}}, v);
  std::function<A(int, std::string const&)> f = [&](int x, std::string const&) { return A{x}; }; f(1, ""); std::function<void()> g = [] {}; g(); std::function<std::unique_ptr<A>(A*, int (*)(int))> h; h = nullptr;
  std::map<std::string, std::vector<std::pair<int, A>>> m; m["x"].emplace_back(1, a); m.try_emplace("y");
  std::unordered_map<int, std::unique_ptr<A>> um; um.emplace(1, std::make_unique<A>()); std::set<Color> sc; sc.insert(Color::red);
  std::vector<int> vi{3, 1, 2}; std::sort(vi.begin(), vi.end(), [](int a, int b) { return a > b; }); std::sort(vi.begin(), vi.end(), std::greater<>{});
  std::thread t([](int x, auto&& y) {}, 1, std::string("a")); t.join(); auto fu = std::async(std::launch::async, [] { return 1; }); fu.get();
  std::regex re("a.*b"); std::regex_match(s, re); std::any an = a; std::any_cast<A&>(an); std::optional<A> o = a; o->get(); std::shared_ptr<A> sp = std::make_shared<A>(); std::bind(&A::get, std::placeholders::_1)(a);
  std::accumulate(vi.begin(), vi.end(), 0); std::tuple<int, std::string, A> tu{1, "", a}; std::apply([](auto&&... x) {}, tu); std::get<1>(tu); std::tuple_cat(tu, tu);
  std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::seconds(1)); std::filesystem::path p("x"); p / "y"; std::mt19937 rng; std::uniform_int_distribution<> d(1, 2); d(rng); std::stringstream ss; ss << 1 << 2.5; ss >> argc;
  Hid{}.f(); hid(1); hid([] {}); struct Local { void m() {} }; Local{}.m(); hid(Local{}); static auto stat = [] { struct In { void z() {} }; In{}.z(); return 1; }();

#if __cplusplus >= 202002L
  con(1); con2(1); con3(1, 2, 'c'); str<Str{"hello"}>(); pt<Pt{1,-2,1.5}>(); coro(1); (void)(a<=>a);
  for (auto x : vi | std::views::filter([](int x){return x>1;}) | std::views::transform([](int x){return x*2.0;}) | std::views::take(2)) (void)x;
  std::ranges::sort(vi, {}, [](int x){return -x;}); std::span<int> spn(vi); spn.subspan(1); std::ranges::for_each(vi, [](auto& x){});
  auto tl = []<class T, T... I>(std::integer_sequence<T, I...>, auto&&... z) { return sizeof...(I); }; tl(std::make_index_sequence<4>{}, 1, a);
#endif

}
