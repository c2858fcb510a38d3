// oneDNN's convolution and its weight gradient as custom calls of XLA.
//
// Images and results are NHWC, kernels HWIO, all in float32; axes in front of these are clients, which take turns. A
// call runs on its own thread alone, so that its last digits don't depend on what other threads do.

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "oneapi/dnnl/dnnl.hpp"
#include "xla/ffi/api/ffi.h"
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
#include <omp.h>
#endif

namespace ffi = xla::ffi;
using dnnl::memory;
using Buffer = ffi::Buffer<ffi::F32>;
using Dims = memory::dims;
using Integers = ffi::Span<const int64_t>;
using Tag = memory::format_tag;

namespace {

// While one lives, oneDNN has a single thread for what this thread asks of it.
struct OneThread {
#if DNNL_CPU_THREADING_RUNTIME == DNNL_RUNTIME_OMP
  const int before = omp_get_max_threads();
  OneThread() { omp_set_num_threads(1); }
  ~OneThread() { omp_set_num_threads(before); }
#else
  OneThread() {}
#endif
};

dnnl::engine& engine() {
  static auto* made = new dnnl::engine(dnnl::engine::kind::cpu, 0);
  return *made;
}

// A convolution, or its weight gradient: dimensions NCHW and OIHW, as oneDNN counts them, and pads top, left, bottom,
// right.
struct Shape {
  bool gradient;
  Dims images, kernel, result, strides, pads;

  bool operator<(const Shape& other) const { return fields() < other.fields(); }
  std::tuple<const bool&, const Dims&, const Dims&, const Dims&, const Dims&, const Dims&> fields() const {
    return std::tie(gradient, images, kernel, result, strides, pads);
  }
};

// A primitive and its scratch memory, which the caller provides: threads share the primitive.
struct Step {
  dnnl::primitive primitive;
  memory::desc scratch;

  explicit Step(const dnnl::primitive_desc_base& made) : primitive(made.get()), scratch(made.scratchpad_desc()) {}
};

// What a shape needs at every call. The kernel alone has a layout of oneDNN's choice: packing it takes little time,
// packing images does not.
struct Plan {
  memory::desc images, kernel, result, packed;
  std::optional<Step> convolve, pack;

  explicit Plan(const Shape& shape)
      : images(dense(shape.images, Tag::nhwc)),
        kernel(dense(shape.kernel, Tag::hwio)),
        result(dense(shape.result, Tag::nhwc)) {
    const auto algorithm = dnnl::algorithm::convolution_direct;
    const auto any = dense(shape.kernel, Tag::any);
    const Dims low(shape.pads.begin(), shape.pads.begin() + 2), high(shape.pads.begin() + 2, shape.pads.end());
    dnnl::primitive_attr attributes;
    attributes.set_scratchpad_mode(dnnl::scratchpad_mode::user);
    const dnnl::convolution_forward::primitive_desc forward(engine(), dnnl::prop_kind::forward_training, algorithm,
                                                            images, any, result, shape.strides, low, high, attributes);
    if (shape.gradient) {
      const dnnl::convolution_backward_weights::primitive_desc backward(
          engine(), algorithm, images, any, result, shape.strides, low, high, forward, attributes);
      packed = backward.diff_weights_desc();
      convolve.emplace(backward);
    } else {
      packed = forward.weights_desc();
      convolve.emplace(forward);
    }
    if (packed != kernel) {
      const auto &from = shape.gradient ? packed : kernel, &to = shape.gradient ? kernel : packed;
      pack.emplace(dnnl::reorder::primitive_desc(engine(), from, engine(), to, attributes));
    }
  }

  size_t scratch_size() const {
    return std::max(convolve->scratch.get_size(), pack ? pack->scratch.get_size() : 0);
  }

 private:
  static memory::desc dense(const Dims& dims, Tag layout) { return {dims, memory::data_type::f32, layout}; }
};

// The plan of a shape, made at its first call. Plans live as long as the process.
const Plan& plan_of(const Shape& shape) {
  static std::mutex guard;
  static auto* plans = new std::map<Shape, std::unique_ptr<const Plan>>;
  const std::lock_guard<std::mutex> lock(guard);
  auto& plan = (*plans)[shape];
  if (!plan) plan = std::make_unique<const Plan>(shape);
  return *plan;
}

// Memory of this thread, which grows to what its largest call needs.
char* workspace(size_t bytes) {
  thread_local std::unique_ptr<char, decltype(&std::free)> block(nullptr, &std::free);
  thread_local size_t size = 0;
  if (bytes > size) {
    size = 0;
    block.reset(static_cast<char*>(std::aligned_alloc(64, bytes)));
    if (!block) throw std::bad_alloc();
    size = bytes;
  }
  return block.get();
}

size_t aligned(size_t bytes) { return (bytes + 63) / 64 * 64; }

void run(const Shape& shape, int64_t clients, float* images, float* kernel, float* result) {
  const OneThread alone;
  const Plan& plan = plan_of(shape);
  const size_t packing = plan.pack ? aligned(plan.packed.get_size()) : 0;
  char* own = workspace(packing + aligned(plan.scratch_size()) + 64);
  dnnl::stream stream(engine());
  const auto at = [](const memory::desc& layout, void* data) { return memory(layout, engine(), data); };
  for (int64_t client = 0; client < clients; ++client) {
    const memory given = at(plan.kernel, kernel), packed = plan.pack ? at(plan.packed, own) : given;
    const auto pack = [&](const memory& from, const memory& to) {
      if (!plan.pack) return;
      plan.pack->primitive.execute(stream, {{DNNL_ARG_FROM, from},
                                            {DNNL_ARG_TO, to},
                                            {DNNL_ARG_SCRATCHPAD, at(plan.pack->scratch, own + packing)}});
    };
    if (!shape.gradient) pack(given, packed);
    plan.convolve->primitive.execute(
        stream, {{DNNL_ARG_SRC, at(plan.images, images)},
                 {shape.gradient ? DNNL_ARG_DIFF_WEIGHTS : DNNL_ARG_WEIGHTS, packed},
                 {shape.gradient ? DNNL_ARG_DIFF_DST : DNNL_ARG_DST, at(plan.result, result)},
                 {DNNL_ARG_SCRATCHPAD, at(plan.convolve->scratch, own + packing)}});
    if (shape.gradient) pack(packed, given);
    images += plan.images.get_size() / sizeof(float);
    kernel += plan.kernel.get_size() / sizeof(float);
    result += plan.result.get_size() / sizeof(float);
  }
}

// The last four dimensions of a buffer, in the order that oneDNN counts them in.
Dims last(const Buffer& buffer, std::array<int, 4> order) {
  Dims found;
  for (int axis : order) found.push_back(buffer.dimensions()[buffer.dimensions().size() - 4 + axis]);
  return found;
}

ffi::Error call(bool gradient, const Buffer& images, const Buffer& kernel, const Buffer& result, Integers strides,
                Integers pads) {
  constexpr std::array<int, 4> nhwc{0, 3, 1, 2}, hwio{3, 2, 0, 1};
  try {
    const Shape shape{gradient,
                      last(images, nhwc),
                      last(kernel, hwio),
                      last(result, nhwc),
                      Dims(strides.begin(), strides.end()),
                      Dims(pads.begin(), pads.end())};
    int64_t clients = 1;
    for (size_t axis = 0; axis + 4 < images.dimensions().size(); ++axis) clients *= images.dimensions()[axis];
    run(shape, clients, images.typed_data(), kernel.typed_data(), result.typed_data());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(error.what());
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    convolve,
    [](Buffer images, Buffer kernel, ffi::Result<Buffer> result, Integers strides, Integers pads) {
      return call(false, images, kernel, *result, strides, pads);
    },
    ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Attr<Integers>("strides").Attr<Integers>("pads"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(
    weight_gradient,
    [](Buffer images, Buffer cotangent, ffi::Result<Buffer> kernel, Integers strides, Integers pads) {
      return call(true, images, *kernel, cotangent, strides, pads);
    },
    ffi::Ffi::Bind().Arg<Buffer>().Arg<Buffer>().Ret<Buffer>().Attr<Integers>("strides").Attr<Integers>("pads"));

extern "C" const char* version() {
  static const std::string* text = new std::string(std::to_string(dnnl_version()->major) + "." +
                                                   std::to_string(dnnl_version()->minor) + "." +
                                                   std::to_string(dnnl_version()->patch));
  return text->c_str();
}
