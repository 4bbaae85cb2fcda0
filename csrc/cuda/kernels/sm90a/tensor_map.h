// Tensor maps, the descriptions of tensors that bulk tensor copies take.
#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <initializer_list>

#include "common/element.h"

namespace aoext::cuda {

inline CUtensorMapDataType map_type(Element e) {
  switch (e) {
    case Element::bf16: return CU_TENSOR_MAP_DATA_TYPE_BFLOAT16;
    case Element::fp16: return CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
    default: return CU_TENSOR_MAP_DATA_TYPE_FLOAT32;
  }
}

struct TensorMap {
  CUtensorMap map;
  bool valid;  // the driver took it

  // Sizes, and the box that is copied at once, in elements, innermost first; strides of all dimensions but that in bytes.
  TensorMap(CUtensorMapDataType type, const void* data, CUtensorMapSwizzle swizzle, std::initializer_list<int64_t> sizes,
            std::initializer_list<int64_t> strides, std::initializer_list<int64_t> box) {
    constexpr cuuint32_t kRank = 5;
    cuuint64_t all_sizes[kRank], all_strides[kRank];
    cuuint32_t all_box[kRank], steps[kRank] = {1, 1, 1, 1, 1};
    std::copy(sizes.begin(), sizes.end(), all_sizes);
    std::copy(strides.begin(), strides.end(), all_strides);
    std::copy(box.begin(), box.end(), all_box);
    static const Encode encode = find_encode();
    valid = encode != nullptr && encode(&map, type, static_cast<cuuint32_t>(sizes.size()), const_cast<void*>(data), all_sizes,
                                        all_strides, all_box, steps, CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle,
                                        CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS;
  }

 private:
  using Encode = decltype(&cuTensorMapEncodeTiled);

  // From the driver that is loaded, so that nothing needs libcuda where there is none.
  static Encode find_encode() {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult result;
    cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &result);
    return reinterpret_cast<Encode>(function);
  }
};

}  // namespace aoext::cuda
